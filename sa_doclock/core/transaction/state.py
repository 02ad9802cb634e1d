"""The state of one session's transaction, which is empty when the transaction has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Final
from weakref import ReferenceType, WeakKeyDictionary, ref

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction

from ...dialects.base import LockStrategy
from ...errors import LockLost
from ...events import EventfulSession, ReleasedLock
from ...options import LockOptions
from ..instrumentation import LockInstrumentation
from ..lock_info import DocumentKey, LockedName
from ..session_ref import session_ref
from ..sqlalchemy_internals import closes_connection
from .connection_events import Mark, TransactionFollower
from .connections import TransactionConnections
from .failed import FailedTransaction
from .first_use import FirstUse
from .ledger import Ledger, LedgerMark
from .locks_lost import LocksLost
from .part import Block, SessionParts
from .request import LockCall

_NOTHING: Final = nullcontext()


class TransactionState(TransactionFollower):
    """The connections, locks, failure and parts of one session's transaction.

    It does not keep its session alive: a Session that nobody refers to any more is freed at once,
    and what it has loaded with it.  ``session()`` returns it; only what the session itself calls
    may do so.

    :param ranks: the declared order of locking.
    """

    adopts_for_update = True
    """True if ``with_for_update()`` is a lock of this session."""

    commits = 0
    """The number of transactions that this session has committed so far."""

    began_by_savepoint = False
    """True if the transaction has begun with ``begin_nested()``, and not with ``begin()``."""

    _committed = False

    def __init__(self, session: EventfulSession, ranks: Mapping[type[Any], int]) -> None:
        self.session = session_ref(session)
        self.instrumentation = LockInstrumentation(session)
        self.ref: ReferenceType[Any] = ref(self)
        """A reference to this state that does not keep it alive."""
        self.ledger = Ledger(ranks)
        """The locks that the transaction holds."""
        self.connections = TransactionConnections(self.session, self.ref)
        """The connections of the transaction."""
        self.locks_lost = LocksLost()
        """The locks that another than the session has ended."""
        self.parts = SessionParts()
        """The features of this session."""
        # What each lock reads several times is not a default of the class: Python finds what the
        # object itself has without a search.
        self.call: LockCall | None = None
        """The call for a lock that is under way."""
        self.failed: FailedTransaction | None = None
        """The failure, because of which all is refused; None in a session where nothing has failed."""

    @FirstUse
    def _marks(self) -> WeakKeyDictionary[SessionTransaction, Mark]:
        """The locks, and the marks of the parts, at each savepoint."""
        return WeakKeyDictionary()

    @property
    def failure(self) -> FailedTransaction:
        """The same as ``failed``, made where it is not there yet."""
        if self.failed is None:
            self.failed = FailedTransaction(self.session, self.connections, self.note_locks_lost)
        return self.failed

    def now(self) -> float:
        """Return the time by a clock that stands still while the session connects."""
        return time.monotonic() - self.connections.connecting

    # What is refused, and because of what.

    def refuse_failed(self) -> None:
        """:raises PendingRollbackError: a lock failed, and nothing was rolled back since."""
        if self.failed is not None:
            self.failed.refuse()

    def verify(self) -> None:
        """Ask the server whether an error has ended the transaction, where that is in doubt."""
        if self.failed is not None:
            self.failed.verify()

    def check_locks(self, *, ask: bool = True) -> None:
        """Compare the ledger with the connections' own word, and with what the parts say.

        :param ask: ask the server too, after a foreign statement.
        :raises LockLost: a part has ended the transaction.
        """
        if self.failed is not None and self.failed.cause is not None:
            ask = False  # it refuses every statement
        if self.connections.locks_lost(ask=ask) or (self.parts.is_over and self.is_over()):
            self._note_all_lost()

    def is_over(self) -> bool:
        """Return whether a part says that the locks must not be counted on any more."""
        return any(is_over() for is_over in self.parts.is_over)

    def _note_all_lost(self) -> None:
        """Forget all locks: the transaction is gone, or a part ends it.

        :raises LockLost: a part has ended it.
        """
        for end_locks in self.parts.end_locks:
            error = end_locks()
            if error is not None:
                raise error
        if self.connections.invalidated():
            self.note_locks_lost()  # SQLAlchemy itself refuses what follows
        else:
            self.note_ended(None, "lost")

    def refuse_write(self) -> None:
        """Refuse a flush, or a statement that writes.

        :raises WrongIsolation: a SnapshotRead has opened the transaction.
        :raises LockLost: the transaction that held the locks has ended, or a part ends it.
        """
        if self.connections.reads_snapshot:
            self.connections.refuse_write_in_snapshot()
        if not self.ledger.empty:
            self.check_locks()
        self.locks_lost.refuse(self.ledger)

    def roll_back_quietly(self) -> None:
        """Roll back because of an error, which is raised whatever the rollback meets."""
        with suppress(Exception):
            self.session().rollback()

    def has_failed(self) -> bool:
        """Return whether a lock has failed, and nothing was rolled back since."""
        return self.failed is not None and self.failed.cause is not None

    def server_has_rolled_back(self) -> bool:
        """Return whether the server has rolled back by itself."""
        return self.failed is not None and self.failed.rolled_back_by_server

    # What is reported of the locks.

    def report_granted(
        self, documents: Iterable[DocumentKey | LockedName], lock: LockOptions, waited: float
    ) -> None:
        """Tell the parts, the listeners and the log what was granted after so many seconds."""
        documents = tuple(documents)
        for granted in self.parts.granted:
            granted(documents, lock)
        self.instrumentation.report_granted(documents, lock, waited)

    def _report_released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        if released:
            for note_released in self.parts.released:
                note_released(released, outcome)
            self.instrumentation.report_released(released, outcome)

    def give_up(self, mark: LedgerMark, *, reported: bool) -> None:
        """Forget the locks since the mark, which a part refuses, though the server has granted them.

        The server keeps them until the end of the transaction.

        :param reported: the grant was reported to the listeners.
        """
        if self.ledger.mark() == mark:
            return
        released = self.ledger.roll_back_to(mark)
        if reported:
            self._report_released(released, "rolled back")
        elif released:
            for note_released in self.parts.released:
                note_released(released, "rolled back")

    # What a Connection and its errors tell.

    def note_locks_lost(self, outcome: str = "lost") -> None:
        """Forget all locks: the server has given them up, though the transaction goes on here."""
        for locks_lost in self.parts.locks_lost:
            locks_lost()
        self._report_released(self.ledger.clear(), outcome)

    def counts_on_transaction(self, strategy: LockStrategy | None) -> bool:
        """See :class:`TransactionFollower`."""
        ledger = self.ledger
        named_locks = None if strategy is None else strategy.named_locks
        return bool(ledger.held) or (
            named_locks is not None and named_locks.end_with_transaction and not ledger.empty
        )

    def holds_locks(self) -> bool:
        """See :class:`TransactionFollower`."""
        return not self.ledger.empty

    def is_locking(self) -> bool:
        """See :class:`TransactionFollower`."""
        return self.call is not None

    def settle(self, connection: Connection) -> None:
        """See :class:`TransactionFollower`."""
        one = self.connections.find(connection)
        if one is not None and one.in_doubt and one.transaction_has_changed():
            self.note_ended(connection, "lost")

    def before_foreign(self, connection: Connection) -> None:
        """See :class:`TransactionFollower`."""
        one = self.connections.find(connection)
        if one is not None and self.counts_on_transaction(one.known):
            one.before_foreign()

    def is_unmarked(self, connection: Connection) -> bool:
        """See :class:`TransactionFollower`."""
        one = self.connections.find(connection)
        return one is not None and one.unmarked

    def before_own_commit(self, connection: Connection) -> None:
        """See :class:`TransactionFollower`."""
        if self.ledger.empty or not self.connections.in_doubt():
            return
        try:
            self._refuse_commit_of_locks_lost()
        except LockLost:
            # SQLAlchemy takes a transaction whose COMMIT has failed for ended, and sends no ROLLBACK.
            with suppress(Exception):
                connection.connection.rollback()
            raise

    def mark(self) -> Mark:
        """See :class:`TransactionFollower`."""
        marks = {part: part.mark() for part in self.parts.all if "mark" in part.hooks}
        return self.ledger.mark(), marks

    def note_ended(self, connection: Connection | None, outcome: str) -> None:
        """See :class:`TransactionFollower`."""
        places = self.ledger.places()
        if places:
            self.locks_lost.note(places, outcome)
        self.connections.note_ended(connection)
        self._undo_settings()
        self.note_locks_lost(outcome)

    def roll_back_connection(self, mark: Mark | None, savepoints: Collection[str]) -> None:
        """See :class:`TransactionFollower`."""
        if self.failed is not None:
            self.failed.note_savepoints_undone(savepoints)
        if mark is None:
            self._undo_settings()
            self.note_locks_lost("rolled back")
        else:
            self._undo(mark)

    def _undo(self, mark: Mark) -> None:
        """Forget what came since."""
        locks, marks = mark
        for part in self.parts.all:
            if "mark" in part.hooks:
                part.roll_back_to(marks.get(part))
        self._undo_settings()
        self._report_released(self.ledger.roll_back_to(locks), "rolled back")

    def _undo_settings(self) -> None:
        for undone in self.parts.settings_undone:
            undone()

    def note_abort(self, connection: Connection, error: BaseException) -> None:
        """Note that an error has aborted the transaction at the server, or its savepoint."""
        events = self.connections.events_of(connection)
        savepoint = None if events is None else events.innermost
        if savepoint is None:
            self.failure.note_abort(error)
            return
        name, (locks, _) = savepoint
        self.failure.note_abort(error, within=name)
        self._report_released(self.ledger.roll_back_to(locks), "lost")

    # Events of the session's transaction, in the order in which they come.

    def begin(
        self,
        transaction: SessionTransaction,
        connection: Connection,
        strategy: LockStrategy | None,
    ) -> None:
        """Note a connection that has begun its part of the transaction, or a savepoint in it."""
        self.connections.add(connection, strategy)
        if self.failed is not None:
            self.failed.note_joined()
        for begun in self.parts.begun:
            begun(connection, lent=not closes_connection(transaction, connection))

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what there is now, before the savepoint is set."""
        self._marks[savepoint] = self.mark()
        self.connections.before_savepoint()

    def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Forget what came after this savepoint."""
        self._undo(self._marks.pop(savepoint))

    def flush_has_rolled_back(self, savepoint: SessionTransaction | None) -> None:
        """Forget what a failed flush has undone, before ``rollback()`` is called.

        :param savepoint: to which it has rolled back; None where the transaction is gone.
        """
        if savepoint is None:
            released = self.ledger.clear()
        else:
            locks, _ = self._marks[savepoint]
            released = self.ledger.roll_back_to(locks)
        self._report_released(released, "rolled back")

    def note_rollback(self, transaction: SessionTransaction) -> None:
        """Note the rollback of the transaction, of a savepoint or of a flush."""
        if transaction.nested:
            self.roll_back_to(transaction)
        elif transaction.parent is not None:
            self.flush_has_rolled_back(self.session().get_nested_transaction())
            self.failure.note_rollback(transaction)
            return
        if self.failed is not None:
            self.failed.note_rollback(transaction)

    def before_commit(self) -> None:
        """:raises PendingRollbackError: the transaction has failed, and cannot be committed."""
        if self.failed is not None:
            self.failed.refuse_commit()
        if not self.session().in_nested_transaction():
            self._refuse_commit_of_locks_lost()
            self.connections.before_commit()
            self.commits_now = True
            for before_commit in self.parts.before_commit:
                before_commit()

    def _refuse_commit_of_locks_lost(self) -> None:
        """:raises LockLost: the locks are lost, and there is something that COMMIT would save."""
        held = not self.ledger.empty
        if held:
            self.check_locks()
        if self.locks_lost.any() and (held or self.connections.may_be_open()):
            self.locks_lost.refuse(self.ledger)

    def after_commit(self) -> None:
        """Note that the databases have committed."""
        if self.session().in_nested_transaction():
            return
        for after_commit in self.parts.after_commit:
            after_commit()
        self._committed = True
        self.commits += 1
        self.connections.after_commit()

    def after_rollback(self) -> None:
        """Drop what waits to be sent, before the connections are given back."""
        self.discard()
        self.connections.note_server_idle()

    def discard(self) -> None:
        """Drop what waits to be sent: the transaction is rolled back."""
        for discard in self.parts.discard:
            discard()

    def end(self) -> None:
        """End: forget all locks, restore lent connections, tell the parts."""
        committed, self._committed = self._committed, False
        self.began_by_savepoint = self.commits_now = False
        self.locks_lost.clear()
        released = self.ledger.clear()
        outcome = "committed" if committed else "rolled back"
        with ExitStack() as stack:  # each part is told, whatever an interruption or another meets
            for ended in reversed(self.parts.ended):
                stack.callback(ended, committed=committed)
            if released:
                for note_released in self.parts.released:
                    note_released(released, outcome)
            self.connections.close()
            if self.failed is not None:
                self.failed.end()
            if released:
                self.instrumentation.report_released(released, outcome)

    def forget(self) -> None:
        """Tell the parts that the session has given up what it knows, perhaps with no transaction."""
        for forget in self.parts.forget:
            forget()


def state_of(session: Session) -> TransactionState | None:
    """Return the state of a LockingSession; None of any other session."""
    state: TransactionState | None = vars(session).get("_context")
    return state


def around(
    hooks: Sequence[Callable[..., Block]], *arguments: Any
) -> AbstractContextManager[object]:
    """Return the blocks of these hooks as one; most sessions have none."""
    return _around(hooks, arguments) if hooks else _NOTHING


@contextmanager
def _around(hooks: Sequence[Callable[..., Block]], arguments: tuple[Any, ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for hook in hooks:
            block = hook(*arguments)
            if block is not None:
                stack.enter_context(block)
        yield
