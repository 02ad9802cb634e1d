"""LockTransaction: the state of one transaction of a session, dropped with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import SessionTransaction

from ...errors import LockLost
from ...events import EventfulSession, ReleasedLock
from ...interruptions import ErrorsIgnored
from ...keys import DocumentKey, LockedName, document_label
from ...sqlalchemy_internals import savepoint_on, savepoints_of
from ..instrumentation import report_released, reports_released
from ..ledger import Ledger, LedgerMark, NamedKey, document_of
from ..lock_request import LockCalls
from ..session_options import SessionOptions
from .failure import Condition, FailingTransaction, TransactionFailure
from .forked import ParentTransaction
from .session_part import Outbox, SessionParts
from .transaction_connection import Mark, TransactionConnections, next_moment

_NONE: Final[Mapping[DocumentKey | NamedKey, str]] = MappingProxyType({})
_NOTHING: Final = nullcontext()
T = TypeVar("T")


class LocksOfSession(Protocol):
    """The parts of a LockContext that outlive the transaction."""

    session: Callable[[], EventfulSession]
    options: SessionOptions
    calls: LockCalls
    parts: SessionParts


class EndOfTransaction(ABC):
    """The memory of a part that acts at the end of the transaction, after all parts."""

    @abstractmethod
    def ended(self, *, committed: bool) -> None:
        """The transaction has ended, and the session no longer has it."""


class LockTransaction(FailingTransaction):
    """The state of one transaction of a session.

    The context creates it with the session's outermost transaction, and drops it when that ends.
    Nothing in it is ever emptied.  If something other than the session ends the transaction at the
    server, the ledger and the ``TransactionConnection`` objects are replaced by empty ones: no
    entry outlives its lock, wherever an interruption comes.

    :ivar ledger: the locks and new documents of the transaction at the server.
    :ivar savepoints: the open ones, the outermost first, with the state at each.
    :ivar lost: the locks that were lost since the transaction began, each with how.
    :ivar began_by_savepoint: ``begin_nested()`` began it, not ``begin()``.
    :ivar wrote: the moment of its last flush or writing statement; 0: never.
    :ivar given_up: documents whose locks a rollback to a savepoint released, each with the moment.
    :ivar outbox: in a session with a pipeline: the unsent writes.
    """

    began_by_savepoint = False
    wrote = 0
    given_up: Mapping[DocumentKey | LockedName, int] = MappingProxyType({})
    outbox: Outbox | None = None

    def __init__(self, locks: LocksOfSession) -> None:
        # A weak reference: a cycle would keep the connections until the next collection.
        self._session = locks.session
        self._parts = locks.parts
        self.ledger = Ledger(locks.options.ranks, locks.calls)
        self.connections = TransactionConnections(self._session)
        self.savepoints: dict[SessionTransaction, Mark] = {}
        self.lost: dict[DocumentKey | NamedKey, str] = {}
        self._memories: dict[object, Any] = {}
        if self._parts.pipeline is not None:
            self.outbox = self._parts.pipeline.of_transaction()

    def saving(self) -> AbstractContextManager[object]:
        """Return the block around commit(), and around a save_changes() that commits."""
        return _NOTHING if self.outbox is None else self.outbox.around_save() or _NOTHING

    def memory(self, part: object, make: Callable[[], T]) -> T:
        """Return a part's memory of this transaction, which is dropped with it.

        :param make: creates it at its first use.
        """
        if part not in self._memories:
            self._memories[part] = make()
        memory: T = self._memories[part]
        return memory

    # Lost locks: something other than the session ended their transaction.

    def is_over(self) -> bool:
        """Return whether the locks are no longer reliable because of the hold limit."""
        deadline = self._parts.deadline
        return deadline is not None and deadline.is_over()

    def check_locks(self, *, ask: bool = True) -> None:
        """Compare the ledger with the state of SQLAlchemy, of the connections and of the parts.

        :param ask: ask the server too, after a foreign statement.
        :raises LockLost: a part has ended the transaction.
        """
        if self.savepoints:
            self.settle_savepoints()
        if self.failures and self.cause() is not None:
            ask = False  # it refuses every statement
        for joined in self.connections.by_engine.values():
            if joined.has_ended(ask=ask):
                self._note_all_ended()
                return
        if self._parts.deadline is not None and self.is_over():
            self._note_all_ended()

    def _note_all_ended(self) -> None:
        """Forget all locks: the transaction has ended, or a part ends it.

        :raises LockLost: a part ended it.
        """
        if self.connections.is_prepared():
            return  # SQLAlchemy refuses later calls, and no part can end it
        error = None if self._parts.deadline is None else self._parts.deadline.end_locks()
        if error is not None:
            raise error
        if self.connections.invalidated():
            self.note_locks_lost()  # SQLAlchemy refuses later calls
        else:
            self.note_ended(None, "lost")

    def refuse_write(self) -> None:
        """Refuse a flush, or a statement that writes.

        :raises WrongIsolation: a SnapshotRead has opened the transaction.
        :raises LockLost: the transaction that held the locks has ended, or a part ends it.
        :raises LockMisuse: it belongs to another process.
        """
        if self.parent is not None:
            self.parent.refuse()
        if self.connections.reads_snapshot:
            self.connections.refuse_write_in_snapshot()
        self.wrote = next_moment()
        if self.ledger.places or self.ledger.new:
            self.check_locks()
        if self.lost:
            self._refuse_lost()

    def refuse_commit(self) -> None:
        """:raises LockLost: the locks are lost, and COMMIT would save something."""
        held = bool(self.ledger.places or self.ledger.new)
        if held:
            self.check_locks()
        if self.lost and (held or self.connections.may_be_open()):
            self._refuse_lost()

    def lost_error(self) -> LockLost | None:
        """Return the error of a lock that was lost, and not taken again since, or None."""
        place = next((place for place in self.lost if not self.ledger.has(place)), None)
        if place is None:
            return None
        how = "ended" if self.lost[place] == "lost" else self.lost[place]
        error = LockLost(
            f"the transaction that held the lock was {how} outside of this session: on its "
            "Connection, by a statement that commits, or by the driver; the session does not "
            "write without the lock: lock again, or call rollback()"
        )
        error.entity, error.ident = document_of(place)
        error.args = (f"{document_label(error.entity, error.ident)}: {error.args[0]}",)
        return error

    def _refuse_lost(self) -> None:
        error = self.lost_error()
        if error is not None:
            raise error

    def before_own_commit(self, connection: Connection) -> None:
        """:raises LockLost: COMMIT would end another transaction than that of the locks."""
        if self.ledger.is_empty() or not self.connections.in_doubt():
            return
        try:
            self.refuse_commit()
        except LockLost:
            # SQLAlchemy believes that a failed COMMIT ended the transaction, and sends no ROLLBACK.
            with ErrorsIgnored(connection):
                connection.connection.rollback()
            raise

    def leave_to_parent(self, process: int) -> None:
        """Leave the transaction to the process that began it: this one is a fork, and holds nothing."""
        if self.parent is not None:
            return  # a fork of a fork
        parent = ParentTransaction(process, self.ledger, self.connections, self._session())
        self.move(Condition.INHERITED, parent=parent, ledger=self.ledger.renewed(), lost={})

    def note_ended(self, connection: Connection | None, outcome: str) -> None:
        """Record that something other than the session has ended the transaction.

        :param connection: whose; None: all of them.
        """
        ledger = self._drop_ledger(dict.fromkeys(self.ledger.places, outcome))
        self.connections.note_ended(connection)
        self._note_lost(ledger, outcome)

    def note_locks_lost(self) -> None:
        """Forget all locks: the server has released them, though the transaction continues here."""
        self._note_lost(self._drop_ledger(), "lost")

    def _note_lost(self, ledger: Ledger, outcome: str) -> None:
        self._report_released(self._told_to_parts(ledger, outcome), outcome)

    def _drop_ledger(self, lost: Mapping[DocumentKey | NamedKey, str] = _NONE) -> Ledger:
        """Replace the ledger by a new one; return the old one.

        One step also bans writes: an interruption must not leave a lock recorded that is not held.
        """
        dropped = self.ledger
        vars(self).update(ledger=dropped.renewed(), lost={**self.lost, **lost})
        return dropped

    # Locks that are released while the transaction continues.

    def mark(self) -> Mark:
        """Return the present state, for a rollback to it."""
        return self.ledger, self.ledger.mark(), next_moment()

    def roll_back_connection(self, mark: Mark | None, savepoints: Collection[str]) -> None:
        """Forget the work of these savepoints, which the program itself has rolled back.

        :param mark: of the first of them; None if the later work is unknown.
        """
        self.note_savepoints_undone(savepoints)
        if mark is None:
            self._note_lost(self._drop_ledger(), "rolled back")
        else:
            self._roll_back_to(mark)

    def settle_savepoints(self) -> None:
        """Forget the work of savepoints that are rolled back.

        SQLAlchemy's event comes later than the server's rollback, and not at all after an
        interruption, or an error of another listener.  So this is also called at other moments: a
        session never claims to hold more than the server does.
        """
        known = savepoints_of(self._session())
        undone = (mark for joined, mark in self.savepoints.items() if known.get(joined, True))
        mark = next(undone, None)
        if mark is not None:
            self._roll_back_to(mark)
        # Last: an interruption before it changes nothing.
        for ended in [savepoint for savepoint in self.savepoints if savepoint not in known]:
            del self.savepoints[ended]

    def _roll_back_to(self, mark: Mark) -> None:
        """Forget later entries; repeating this changes nothing."""
        *_, moment = mark
        if self._parts.guard is not None:
            self._parts.guard.roll_back()
        for roll_back_to in self._parts.roll_back_to:
            roll_back_to(moment)
        self.release_since(mark, "rolled back")

    def note_abort(self, connection: Connection, error: BaseException) -> None:
        """Record that an error has aborted the transaction at the server, or its savepoint."""
        joined = self.connections.find(connection)
        savepoint = savepoint_on(self._session(), connection)
        within, mark = None, None if savepoint is None else self.savepoints.get(savepoint)
        if joined is not None and joined.savepoints:
            within, mark = joined.savepoints[-1]
        self.fail(TransactionFailure(Condition.ABORTED, error, savepoint, within))
        if mark is None:
            self.note_locks_lost()
        else:
            self.release_since(mark, "lost")

    def note_unseen_abort(self) -> None:
        """Record an error that has aborted the transaction, and whose event an interruption prevented."""
        if any(failure.condition is Condition.ABORTED for failure in self.failures):
            return
        for joined in self.connections.by_engine.values():
            if joined.is_aborted():
                error = LockLost(
                    "an interruption came between an error and its handling, and the server has aborted "
                    "the transaction; run the whole transaction again"
                )
                self.note_abort(joined.connection, error)

    def give_up(self, mark: LedgerMark, *, reported: bool) -> None:
        """Forget the locks since the mark, which a part refuses although the server granted them.

        The server keeps them until the end of the transaction.

        :param reported: the grant was reported to the listeners.
        """
        if self.ledger.mark() == mark:
            return
        if reported:
            self.release(mark, "rolled back")
        else:
            self._forget(mark, "rolled back")

    def release_since(self, mark: Mark, outcome: str) -> None:
        """Forget the locks since this moment."""
        ledger, locks, _ = mark
        # A different ledger means that the old one was dropped: all of its locks came later.
        self.release(locks if ledger is self.ledger else None, outcome)

    def release(self, mark: LedgerMark | None, outcome: str) -> None:
        """Forget the locks since this mark, or all of them, and report them."""
        self._report_released(self._forget(mark, outcome), outcome)

    def _forget(self, mark: LedgerMark | None, outcome: str) -> Sequence[ReleasedLock]:
        if mark is not None:
            released = self.ledger.roll_back_to(mark)
            if released:
                given_up = vars(self).setdefault("given_up", {})
                given_up.update(dict.fromkeys((lock.document for lock in released), next_moment()))
            return self._tell_parts(released, outcome)
        return self._told_to_parts(self._drop_ledger(), outcome)

    def _told_to_parts(self, ledger: Ledger, outcome: str) -> Sequence[ReleasedLock]:
        if not (ledger.places and (self._parts.released or reports_released())):
            return ()
        return self._tell_parts(ledger.released(), outcome)

    def _report_released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        session = self._session()
        if released and session is not None:
            report_released(session, released, outcome)

    def _tell_parts(self, released: Sequence[ReleasedLock], outcome: str) -> Sequence[ReleasedLock]:
        if released:
            for note_released in self._parts.released:
                note_released(released, outcome)
        return released

    def end(self) -> None:
        """Report released locks, restore lent connections, and tell the parts.

        The context has already dropped it.
        """
        committed = self.condition is Condition.COMMITTED
        outcome = "committed" if committed else "rolled back"
        try:
            released: Sequence[ReleasedLock] = ()
            if self.ledger.places and (self._parts.released or reports_released()):
                released = self._tell_parts(self.ledger.released(), outcome)
            self.connections.restore()
            if self.parent is not None:
                self.parent.end(self._session())
            if released:
                self._report_released(released, outcome)
        finally:
            ended = [*self._parts.ended]
            for memory in self._memories.values():
                if isinstance(memory, EndOfTransaction):
                    ended.append(memory.ended)  # noqa: PERF401  # a comprehension is one call more
            if ended:
                _call_each(ended, committed=committed)


def _call_each(functions: Sequence[Callable[..., None]], *, committed: bool) -> None:
    first, *others = functions
    try:
        first(committed=committed)
    finally:
        if others:
            _call_each(others, committed=committed)
