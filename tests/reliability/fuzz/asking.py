"""One question to one session: what it is asked, what the database is sent, what comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import InvalidRequestError

from sa_doclock import DocLockError, LockingSession, LockOptions, UnlockedWriteWarning
from sa_doclock.options import GuardMode
from tests.reliability.fuzz.entities import Shape
from tests.reliability.fuzz.states import STATES
from tests.reliability.fuzz.words import Asked, missing
from tests.sql.script import Script

MODIFIERS = LockOptions.NoWait | LockOptions.SkipLocked
EVERY = [LockOptions(bits) for bits in range(64)]
QUEUEING = (LockOptions.SharedRead, LockOptions.ForUpdate)
BASES = (LockOptions.None_, LockOptions.NoLock, *QUEUEING, LockOptions.SnapshotRead)
VALID = [
    *BASES,
    *(base | modifier for base in QUEUEING for modifier in LockOptions if modifier in MODIFIERS),
]

GUARDS: tuple[GuardMode, ...] = ("raise", "warn", "off")

#: The polymorphic column, also as a subquery names it.
KINDS = ("kind", "shop_contract_kind", "shop_project_kind", "shop_ticket_kind")

#: How often a database has been asked.
ASKED: Counter[str] = Counter()

Ask = Callable[[LockingSession], Any]
Sessions = tuple[str, Engine, Script]


class Wish(NamedTuple):
    """A lock to ask for, and the state in which it is asked.

    :ivar seconds: of the call, ``session_seconds`` of the session.
    :ivar then: what the session has done after ``state``.
    """

    shape: Shape
    lock: LockOptions
    seconds: float | None = None
    session_seconds: float | None = None
    batch: bool = False
    state: str = "no transaction"
    guard: GuardMode = "raise"
    then: str = "no transaction"

    @property
    def states(self) -> list[str]:
        return list(dict.fromkeys((self.state, self.then)))

    @property
    def contradictory(self) -> bool:
        """As DESIGN.md has it: nothing may be sent to a database then."""
        if self.lock not in VALID:
            return True
        if LockOptions.SkipLocked in self.lock:  # it may wait behind a lock on the table
            return self.seconds == 0
        queues = self.lock in QUEUEING
        waits_for_nobody = LockOptions.NoWait in self.lock and self.seconds == 0
        return self.seconds is not None and not queues and not waits_for_nobody

    @property
    def no_wait(self) -> bool:
        if self.lock not in QUEUEING:
            return LockOptions.NoWait in self.lock
        seconds = self.session_seconds if self.seconds is None else self.seconds
        return seconds == 0 or self.batch

    @property
    def limit(self) -> float | None:
        """The seconds that the database must be asked to wait, at most."""
        if LockOptions.SkipLocked in self.lock:
            return self.seconds
        if self.lock not in QUEUEING or self.no_wait:
            return None
        return self.session_seconds if self.seconds is None else self.seconds


class Answer(NamedTuple):
    """The result: an error, or ``lacks``, the part of the lock that the database did not receive.

    :ivar earlier: what was sent in the transaction before.
    """

    error: Exception | None
    received: list[str]
    lacks: str | None = None
    earlier: Sequence[str] = ()


def answer(served: Sessions, wish: Wish, ask: Ask, *, held: bool = False) -> Answer | None:
    """Bring a session into its state, and ask; None where it cannot be in that state.

    :param held: the state may have brought the lock with it already.
    """
    database, engine, script = served
    script.sent.clear()
    script.values.update(dict.fromkeys(KINDS, wish.shape.kind))
    with LockingSession(
        engine,
        lock_timeout=wish.session_seconds,
        priority="batch" if wish.batch else "interactive",
        guard=wish.guard,
    ) as session:
        try:
            kept = [STATES[name](session, wish.shape) for name in wish.states]
        except (DocLockError, InvalidRequestError, UnlockedWriteWarning):
            return None
        earlier = list(_since_checkout(script.sent))
        sent_before = len(script.sent)
        ASKED[database] += 1
        try:
            ask(session)
        except Exception as error:  # noqa: BLE001  # the tests say which may come
            return Answer(error, script.sent[sent_before:])
        received = script.sent[sent_before:]
        del kept
    if held:
        return Answer(None, received, earlier=earlier)
    base = wish.lock & ~MODIFIERS
    skip = LockOptions.SkipLocked in wish.lock
    asked = Asked(base, wish.no_wait, skip, wish.limit, wish.shape.header, earlier, received)
    return Answer(None, received, missing(database, asked))


def _since_checkout(sent: list[str]) -> list[str]:
    """Return the statements that the connection received in this transaction."""
    back = [number for number, sql in enumerate(sent) if sql == "(back to the pool)"]
    return sent[back[-1] + 1 :] if back else list(sent)


def is_ours(error: Exception | None) -> bool:
    """Return whether a caller must expect this error; subclasses of ValueError are accidents."""
    return isinstance(error, DocLockError) or type(error) in (ValueError, TypeError)
