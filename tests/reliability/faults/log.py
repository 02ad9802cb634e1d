"""The attempts of the clients, the acknowledged commits, and the errors that reached them."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import DocLockError, LockingSession, LockMisuse
from tests.reliability.history.record import Outcome, Transaction


class Injected(BaseException):
    """An exception that a fault raises in a client, as Ctrl-C would; only the client catches it."""


@dataclass
class Attempt:
    """One transaction of a client.

    :ivar update: which update it is an attempt at; 0 of one that only reads.
    :ivar marks: what it meant to leave: by folder, the change of the total.
    :ivar commit_sent: whether the database may have been asked to commit.
    """

    number: int
    update: int
    transaction: Transaction
    marks: dict[int, int] = field(default_factory=dict)
    commit_sent: bool = False

    @property
    def outcome(self) -> Outcome:
        return self.transaction.outcome

    @property
    def acknowledged(self) -> bool:
        return self.outcome is Outcome.COMMITTED


current: ContextVar[Attempt | None] = ContextVar("current", default=None)
"""The attempt that runs in this thread or task."""


@dataclass
class Log:
    """Of one run; all of its clients append to it."""

    attempts: list[Attempt] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    foreign: list[BaseException] = field(default_factory=list)
    broken_reads: list[str] = field(default_factory=list)
    _tick: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    _ended: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def listening(self, engine: Engine, *, pipelined: bool = False) -> Iterator[None]:
        """Note when an attempt's COMMIT is about to be sent.

        :param pipelined: the sessions may send it with the last flush.
        """
        target, name = (LockingSession, "before_commit") if pipelined else (engine, "commit")
        event.listen(target, name, _note_commit)
        yield
        event.remove(target, name, _note_commit)

    def begin(self, update: int) -> Attempt:
        """Begin another attempt at this update in this thread or task."""
        number = self._tick()
        attempt = Attempt(number, update, Transaction(number, number, 0, Outcome.ABORTED))
        current.set(attempt)
        self.attempts.append(attempt)
        return attempt

    def new_update(self) -> int:
        """Return the number of an update."""
        return self._tick()

    def acknowledge(self, attempt: Attempt) -> None:
        """Its commit has returned, or all that it wanted to read is read."""
        self._end(attempt, Outcome.COMMITTED)

    def give_up(self, attempt: Attempt) -> None:
        """An error has ended it: what was asked to commit may have been committed."""
        if not attempt.acknowledged:
            self._end(attempt, Outcome.UNKNOWN if attempt.commit_sent else Outcome.ABORTED)

    def reached_client(self, error: BaseException, *injected: type[BaseException]) -> None:
        """Note an error that reached a client."""
        self.errors[type(error).__name__] += 1
        if not is_typed(error) and not isinstance(error, injected):
            self.foreign.append(error)

    def update_ended(self) -> None:
        """A client is through with an update, well or not."""
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    @property
    def ended(self) -> int:
        """The number of updates that the clients have ended."""
        return self._ended

    def wait_for(self, ended: int, seconds: float = 2) -> None:
        """Wait until so many updates have ended; not for long: a fault may have stopped all."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= ended, seconds)

    def updates(self) -> Iterator[Attempt]:
        """The attempts that wanted to change something."""
        return (attempt for attempt in self.attempts if attempt.update)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.transaction.outcome = outcome
        attempt.transaction.ended = self._tick()


def is_typed(error: BaseException) -> bool:
    """Return whether a client may get this error: of the database, and no mistake of its own."""
    if isinstance(error, (LockMisuse, sa.exc.IntegrityError, sa.exc.ProgrammingError)):
        return False
    # MariaDB may answer an UPDATE that KILL QUERY has met with "0 rows matched", and no error.
    known = (DocLockError, sa.exc.DBAPIError, sa.exc.TimeoutError, StaleDataError)
    return isinstance(error, known)


def _note_commit(_: object) -> None:
    attempt = current.get()
    if attempt is not None:
        attempt.commit_sent = True
