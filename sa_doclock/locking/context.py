"""What a LockingSession knows of its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import SessionTransaction

from ..dialects.base import Read
from ..errors import WrongIsolation
from ..events import EventfulSession
from ..gate import DocumentGate, SessionQueue, Wanted
from ..guard import BulkGuard, Guard, GuardMode, Reads
from ..monitoring import LockInstrumentation
from ..options import LockOptions, is_row_lock
from ..session_ref import weakly
from ..transaction import (
    ErrorTranslation,
    FailedTransaction,
    Ledger,
    OnCommit,
    Pipelining,
    TransactionConnection,
    TransactionConnections,
)
from .wait_policy import WaitPolicy, pause

T = TypeVar("T")

_ALONE: Final = nullcontext()


class LockContext:
    """The books of one session: empty when its transaction has ended."""

    def __init__(
        self,
        session: EventfulSession,
        ranks: Mapping[type[Any], int],
        patience: WaitPolicy,
        guard: GuardMode,
        *,
        guard_tracing: bool,
        pipeline: bool = False,
    ) -> None:
        self._session = weakly(session)
        self.telling = LockInstrumentation(session)
        self.ledger = Ledger(ranks, heard=self.telling.has_release_listener)
        self.patience = patience
        self.participants = TransactionConnections(session, gives_way=patience.gives_way)
        of_session = session, self.participants, self.ledger, self.telling
        self.aftermath = FailedTransaction(*of_session)
        self.failures = ErrorTranslation(*of_session, self.aftermath)
        self.guard = Guard(session, self.ledger, guard)
        self.reads = Reads(self.ledger, tracing=guard_tracing)
        self.on_commit = OnCommit()
        self.passage: SessionQueue | None = None  # through a gate, where there is one
        self.pipelining = Pipelining(self.aftermath) if pipeline else None
        self.binds: tuple[Engine | Connection, ...] = ()  # of the session, beside session.bind

    @cached_property
    def bulk(self) -> BulkGuard:
        """What it may write by statements."""
        return BulkGuard(self._session(), self.guard, self.ledger)

    @cached_property
    def _marks(self) -> WeakKeyDictionary[SessionTransaction, tuple[tuple[int, ...], int]]:
        """What there was when each savepoint was set."""
        return WeakKeyDictionary()

    def pass_through(self, gate: DocumentGate) -> None:
        """Queue at this gate.  :raises TypeError: it is none."""
        self.passage = SessionQueue(gate, self._session(), self.participants, self.ledger)

    def check(self) -> None:
        """Look at what has become of the transaction, before it is counted on.

        :raises PendingRollbackError: a lock failed, and nothing was rolled back since.
        """
        self.aftermath.refuse()
        if self.participants.lost():
            self.aftermath.lose()

    def take(
        self,
        entity: type[Any] | None,
        ident: Any,
        lock: LockOptions,
        seconds: float | None,
        attempt: Callable[[LockOptions, float | None], T],
        *,
        keys: Sequence[tuple[Any, ...]] = (),
        bind: Engine | Connection | None = None,
    ) -> T:
        """Take a lock: what fails in ``attempt`` is a failed lock, with all that follows.

        :param keys: of the rows, where they are known.
        :param bind: of a named lock.
        """
        if self.passage is not None:
            wanted = Wanted(entity, ident, keys, bind)
            attempt = self.passage.lead(attempt, wanted, self.failures.answered)
        with self.failures.of_lock(entity, ident, lock, seconds, keys):
            return self.patience.take(lock, seconds, attempt, self._pause)

    def _pause(self, seconds: float) -> None:
        connections = self.participants.connections()
        under_asyncio = any(one.dialect.is_async for one in connections)
        if self.passage is not None and not connections:
            under_asyncio = self.passage.under_asyncio
        pause(seconds, under_asyncio=under_asyncio)

    def waiting(
        self, participant: TransactionConnection, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        """Limit the waits of the block; in a batch, a lock that is not available is undone."""
        strategy, connection = participant.strategy, participant.connection
        tries = self.patience.gives_way and LockOptions.NoWait in lock
        limited = (
            strategy.waiting(connection, lock, seconds)
            if self.pipelining is None
            else self.pipelining.locking(connection, seconds)
        )
        if tries and is_row_lock(participant.row_lock(lock)):
            return self.failures.undone_by_savepoint(connection, limited)
        return limited

    def reading_ahead(self, reads: Callable[[], Iterable[Read]]) -> AbstractContextManager[None]:
        """What is locked in this block is read on by these statements, which may travel along."""
        return _ALONE if self.pipelining is None else self.pipelining.reading_ahead(reads)

    def committing(self) -> AbstractContextManager[None]:
        """A flush in this block may travel with the COMMIT that follows."""
        return _ALONE if self.pipelining is None else self.pipelining.committing()

    def refuse_write_in_snapshot(self) -> None:
        """:raises WrongIsolation: a SnapshotRead has opened the transaction."""
        if self.participants.read_only():
            raise WrongIsolation(
                "a SnapshotRead has opened this transaction read-only; end it before you write"
            )

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what there was when the savepoint was set."""
        self._marks[savepoint] = self.ledger.mark(), self.on_commit.mark()

    def undone_by_flush(self, savepoint: SessionTransaction | None) -> None:
        """A flush has failed and rolled back, before ``rollback()`` is called.

        :param savepoint: to which it has; None where the transaction is gone.
        """
        if savepoint is None:
            self.telling.report_released(self.ledger.clear(), "rolled back")
        else:
            locks, _ = self._marks[savepoint]
            self.telling.report_released(self.ledger.roll_back_to(locks), "rolled back")

    def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Forget what came since."""
        locks, functions = self._marks.pop(savepoint)
        self.on_commit.roll_back_to(functions)
        self.telling.report_released(self.ledger.roll_back_to(locks), "rolled back")

    def note_end(self) -> None:
        """The database has committed, or rolled back."""
        self.participants.note_server_idle()

    def close(self) -> None:
        """The transaction is over; what it has promised is done now, or never."""
        outcome = "committed" if self.on_commit.was_committed else "rolled back"
        released = self.ledger.clear()
        try:
            self.participants.close()
            if self.pipelining is not None:
                self.pipelining.ended()
            self.aftermath.over()
            self.telling.report_released(released, outcome)
        finally:
            self.on_commit.ended()
