"""The schedule of two functions: both have read before either writes, unless a lock stops one.

A function that is about to write waits for its turn.  It gets it when the other one is about to
write too, has ended, or waits for a lock.  The one that has had fewer turns goes first.  A turn
ends at the next write after another read.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError

from .async_connections import AsyncConnections
from .file_locks import COMMIT, holds_file, waits_for_file
from .listening import listening
from .loops import wait_for_turn
from .server_waits import ServersAsked, connection_id, locks_database

FIRST_LOOK: Final = 0.005
"""Seconds without a sign of life after which the server is asked."""

NEXT_LOOK: Final = 0.12
"""Seconds between two questions: MariaDB answers from a copy that it renews only when nobody has
read it for 0.1 s (CACHE_MIN_IDLE in its trx0i_s.cc)."""

LONG_STATEMENT: Final = 1.0
"""Seconds after which a statement waits for a lock, whatever the server tells: it may not know, or
not show it to this account."""

_WRITE: Final = re.compile(r"\s*(INSERT|UPDATE|DELETE|MERGE|REPLACE)\b", re.IGNORECASE)
_READ: Final = re.compile(r"\s*(SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)


class Party:
    """One of the two functions, as the schedule sees it.

    :ivar turn: what it waits for before it writes; None while it runs.
    :ivar turns: the number of turns that it has had.
    :ivar has_read: it has read since its last turn began, or has had none.
    :ivar statement: that runs now; None between two.
    :ivar refused: a lock was refused since the other one waits.
    :ivar in_process: it waits inside of this process, as a session at a gate does.
    :ivar active_at: the time of its last sign of life.
    :ivar blocked_at: the same, when it was seen to wait for a lock.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = self.refused = self.in_process = False
        self.turn: Future[None] | None = None
        self.turns = 0
        self.has_read = True
        self.statement: str | None = None
        self.connection: Connection | None = None
        self.used: list[ref[Connection]] = []
        self.blocked_at: float | None = None
        self.active_at = time.monotonic()

    def note(self, connection: Connection | None = None, statement: str | None = None) -> None:
        """Note a sign of life."""
        if connection is not None and connection is not self.connection:
            self.connection = connection
            self.used.append(ref(connection))
        self.statement = statement
        self.active_at = time.monotonic()

    @property
    def holds_file(self) -> bool:
        """True if one of its connections has the write lock of a SQLite file."""
        connections = (reference() for reference in [*self.used])
        return any(one is not None and holds_file(one) for one in connections)

    @property
    def needs_the_other(self) -> bool:
        """True if it has ended, a lock was refused, or it waits for one."""
        return self.done or self.refused or self.in_process or self.blocked_at == self.active_at


current_party: ContextVar[Party | None] = ContextVar("sa_doclock.testing.party", default=None)
"""The function that runs in this thread or task, and in those that it has started."""


class Schedule:
    """Gives two functions their turns.

    :param patience: seconds without a sign of life after which a function waits for the other one
        inside of the process.
    :param run: runs a function of SQLAlchemy's on an asynchronous engine.
    """

    def __init__(self, patience: float, run: Callable[[Callable[[], Any]], Any]) -> None:
        self.parties = Party("first"), Party("second")
        self._patience = patience
        self._changed = threading.Condition()
        self._servers = ServersAsked(run)
        self._owners: dict[int, Party] = {}  # by the server's id of the connection
        self._over = False
        self.connections = AsyncConnections(self._party)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to all engines of the process in a block; after it, nobody waits for a turn."""
        own = listening(
            (Engine, "before_cursor_execute", self._before_statement),
            (Engine, "after_cursor_execute", lambda connection, *_: self._note(connection)),
            (Engine, "handle_error", self._on_error),
            (Engine, "commit", lambda connection: self._note(connection, COMMIT)),
            (Engine, "rollback", self._note),
        )
        with closing(self._servers), own, self.connections.listening():
            try:
                yield
            finally:
                with self._changed:
                    self._over = True
                    for party in self.parties:
                        self._release(party)
                for party in self.parties:
                    self.connections.release(party)

    def note_done(self, party: Party) -> None:
        """Note that a function has ended."""
        self.connections.release(party)
        with self._changed:
            party.done = True
            self._changed.notify_all()

    def direct(self, timeout: float) -> None:
        """Give the turns until both have ended.

        :raises TimeoutError: one of them has not.
        """
        end = time.monotonic() + timeout
        while not all(party.done for party in self.parties):
            left = end - time.monotonic()
            if left <= 0:
                running = " and the ".join(one.name for one in self.parties if not one.done)
                raise TimeoutError(f"the {running} has not ended after {timeout:g} s")
            pause = self._step(left)
            if pause:
                with self._changed:
                    self._changed.wait(min(pause, left))

    def _step(self, left: float) -> float:
        """Give a turn, if it is time; return the seconds until the next look."""
        with self._changed:
            one, other = self._waiting_and_running()
            if one is None:
                if not all(party.done for party in self.parties):
                    self._changed.wait(left)
                return 0
            if other is None or other.needs_the_other:
                self._release(one)
                return 0
            seen_at = other.active_at
        quiet = time.monotonic() - seen_at
        if quiet < FIRST_LOOK:
            return FIRST_LOOK - quiet
        if quiet < self._patience and not self._waits(other, one, quiet):
            return NEXT_LOOK
        other.blocked_at = seen_at
        return 0

    def _waiting_and_running(self) -> tuple[Party | None, Party | None]:
        """Return the function whose turn is next, if it waits, and the one that it waits for.

        Both wait: the one that has had fewer turns, and None.
        """
        first, second = self.parties
        if first.turn is not None and second.turn is not None:
            return (second if second.turns < first.turns else first), None
        if first.turn is not None:
            return first, second
        return (second, first) if second.turn is not None else (None, None)

    def _release(self, party: Party) -> None:
        if party.turn is not None:
            for one in self.parties:
                one.refused = False
            turn, party.turn = party.turn, None
            party.turns += 1
            party.has_read = False
            party.note()
            turn.set_result(None)

    def _waits(self, other: Party, one: Party, quiet: float) -> bool:
        """Return whether the other function waits for a lock in the database."""
        if other.connection is None:
            return False
        engine = other.connection.engine
        if locks_database(engine):
            return waits_for_file(other.statement, quiet, other_holds=one.holds_file)
        waiters = self._servers.blockers(engine) or ()
        if any(self._owners.get(waiter) is other for waiter in waiters):
            return True
        return other.statement is not None and quiet >= LONG_STATEMENT

    # Listeners, in the thread or task of the function.

    def _party(self) -> Party | None:
        party = current_party.get()
        return party if party in self.parties and not self._over else None

    def _before_statement(
        self,
        connection: Connection,
        _cursor: object,
        statement: str,
        _parameters: object,
        context: Any,
        _executemany: bool,
    ) -> None:
        party = self._party()
        if party is None:
            return
        writes = _is_write(context, statement)
        if writes and party.has_read:
            self._wait_for_turn(party, connection)
        number = connection_id(connection)
        with self._changed:
            if number is not None:
                self._owners[number] = party
            party.has_read = party.has_read or bool(_READ.match(statement))
            party.note(connection, statement)
            self._changed.notify_all()

    def _on_error(self, context: ExceptionContext) -> None:
        party = self._party()
        if party is None:
            return
        self.connections.release(party)
        with self._changed:
            party.note(context.connection)
            party.refused = isinstance(context.sqlalchemy_exception, OperationalError)
            self._changed.notify_all()

    def _note(self, connection: Connection, statement: str | None = None) -> None:
        party = self._party()
        if party is not None:
            party.note(connection, statement)

    @contextmanager
    def waiting_in_process(self) -> Iterator[None]:
        """Note that the function of this thread or task waits inside of this process."""
        party = self._party()
        if party is None:
            yield
            return
        self._note_in_process(party, waits=True)
        try:
            yield
        finally:
            self._note_in_process(party, waits=False)

    def _note_in_process(self, party: Party, *, waits: bool) -> None:
        with self._changed:
            party.in_process = waits
            party.note()
            self._changed.notify_all()

    def _wait_for_turn(self, party: Party, connection: Connection) -> None:
        turn: Future[None] = Future()
        with self._changed:
            if self._over:
                return
            party.turn = turn
            party.note(connection)
            self._changed.notify_all()
        wait_for_turn(turn, connection)


def _is_write(context: Any, statement: str) -> bool:
    flags = ("isinsert", "isupdate", "isdelete")
    return any(getattr(context, flag, False) for flag in flags) or bool(_WRITE.match(statement))
