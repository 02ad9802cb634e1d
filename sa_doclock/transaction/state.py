"""The state of one session's transaction, which is empty when the transaction has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import SessionTransaction

from ..dialects.base import LockStrategy
from ..events import EventfulSession
from ..lock_info import DocumentKey
from ..monitoring import Diagnosis, HeldWarnings, LockInstrumentation
from ..options import LockTimeout, check_hold_limit, check_seconds
from ..session_ref import session_ref
from .connections import new_connections
from .failed import FailedTransaction
from .first_use import FirstUse
from .hold_limit import HoldLimit
from .ledger import Mark, NamedKey, new_ledger
from .lock_lost import ended_by_other
from .pipeline import SessionPipeline
from .request import LockRequest
from .routing import BindRouter

if TYPE_CHECKING:
    from .lock_call import LockCall

_log = logging.getLogger("sa_doclock")


class TransactionState:
    """The connections, locks and failure of one session's transaction.

    It does not keep its session alive: a Session that nobody refers to any more is freed at once,
    and what it has loaded with it.  ``session()`` returns it; only what the session itself calls
    may do so.

    :param ranks: the declared order of locking.
    """

    diagnosis: Diagnosis | None = None
    """Adds to an error who holds the lock, where the session was made with ``diagnose=True``."""

    adopting: LockRequest | None = None
    """The lock of a ``with_for_update()`` of the program, while its statement runs."""

    check_lent: Callable[[Engine | Connection], None] | None = None
    """Checks a database that the program names, while run_transaction() runs."""

    commits = 0
    """The number of transactions that this session has committed so far."""

    lost: dict[DocumentKey | NamedKey, str] | None = None
    """The locks that another than the session has ended, with how; they forbid every write."""

    began_by_savepoint = False
    """True if the transaction has begun with ``begin_nested()``, and not with ``begin()``."""

    commits_now = False
    """True from the start of the session's own commit to its end."""

    _committed = False
    _on_commit: Sequence[Callable[[], object]] = ()  # to be called after the commit

    def __init__(
        self,
        session: EventfulSession,
        ranks: Mapping[type[Any], int],
        *,
        low_priority: bool = False,
    ) -> None:
        self.session = session_ref(session)
        self.instrumentation = LockInstrumentation(session)
        self.ranks = ranks
        self.low_priority = low_priority
        # What each lock reads several times is not a default of the class: Python finds what the
        # object itself has without a search.
        self.call: LockCall | None = None
        """The call for a lock that is under way."""
        self.failed: FailedTransaction | None = None
        """The failure, because of which all is refused; None in a session where nothing has failed."""
        self.pipeline: SessionPipeline | None = None
        """Sends statements together, where the session was made with ``pipeline=True``."""
        self.routing: BindRouter | None = None
        """Stands before the program's own get_bind(), where the session's class has one."""

    def limit_hold(self, hold_limit: LockTimeout, warn_held_after: LockTimeout) -> None:
        """Limit the time that the transactions of this session hold their locks; warn of long ones.

        :raises TypeError, ValueError: one of them is no such time.
        """
        seconds = check_hold_limit(hold_limit)
        if seconds is not None:
            self.connections.hold_limit = HoldLimit(self, seconds)
        seconds = check_seconds("warn_held_after", warn_held_after)
        if seconds is not None:
            self.instrumentation.held_warnings = HeldWarnings(seconds)

    # A session that is made and closed has no use for these, most transactions none for the others.

    ledger = FirstUse(new_ledger)
    connections = FirstUse(new_connections)

    @property
    def failure(self) -> FailedTransaction:
        """The same, made where it is not there yet."""
        if self.failed is None:
            self.failed = FailedTransaction(self.session, self.connections, self.lose_locks)
        return self.failed

    @FirstUse
    def _marks(self) -> WeakKeyDictionary[SessionTransaction, tuple[Mark, int]]:
        """The numbers of locks and functions at each savepoint."""
        return WeakKeyDictionary()

    def verify(self) -> None:
        """Ask the server whether an error has ended the transaction, where that is in doubt."""
        if self.failed is not None:
            self.failed.verify()

    def refuse_failed(self) -> None:
        """:raises PendingRollbackError: a lock failed, and nothing was rolled back since."""
        if self.failed is not None:
            self.failed.refuse()

    def lose_locks(self) -> None:
        """Forget all locks: the server has given them up, though the transaction goes on here."""
        self.instrumentation.report_released(self.ledger.clear(), "lost")

    def note_lost(self) -> None:
        """Forget all locks, as :meth:`TransactionConnections.lost` has found the transaction gone.

        :raises LockLost: they were held for longer than ``hold_limit``.
        """
        hold_limit = self.connections.hold_limit
        if hold_limit is not None and hold_limit.is_over():
            raise hold_limit.end_transaction()
        if self.connections.invalidated():
            self.lose_locks()  # SQLAlchemy itself refuses what follows
        else:
            self.note_ended(None, "lost")

    def note_ended(self, connection: Connection | None, outcome: str) -> None:
        """Note that the transaction has ended, though the session has not ended it.

        :param connection: whose; None for all of them.
        """
        places = self.ledger.places()
        if places:
            self.lost = {**(self.lost or {}), **dict.fromkeys(places, outcome)}
        self.connections.note_ended(connection)
        self.instrumentation.report_released(self.ledger.clear(), outcome)

    def counts_on_transaction(self, strategy: LockStrategy | None) -> bool:
        """Return whether locks are held that end with a transaction of this database."""
        ledger = self.ledger
        return bool(ledger.held) or (
            strategy is not None and strategy.keys_end_with_transaction and not ledger.empty
        )

    def refuse_write(self) -> None:
        """Refuse a flush, or a statement that writes.

        :raises WrongIsolation: a SnapshotRead has opened the transaction.
        :raises LockLost: the transaction that held the locks has ended, or is to end: hold_limit.
        """
        if self.connections.reads_snapshot:
            self.connections.refuse_write_in_snapshot()
        if self.connections.lost() and not self.ledger.empty:
            self.note_lost()
        if self.lost:
            self._refuse_lost(self.lost)

    def _refuse_lost(self, lost: Mapping[DocumentKey | NamedKey, str]) -> None:
        """:raises LockLost: one of these locks was not taken again since."""
        for place, outcome in lost.items():
            if not self.ledger.has(place):
                raise ended_by_other(place, outcome)

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

    def expected_error(self) -> BaseException | None:
        """Return the error that a ROLLBACK may repeat, and that is known already."""
        return None if self.failed is None else self.failed.expected_error

    def undone_by(self) -> BaseException | None:
        """Return the error of a flush that has rolled back, while SQLAlchemy waits for rollback()."""
        return None if self.failed is None else self.failed.undone_by

    def on_commit(self, function: Callable[[], object]) -> None:
        """Call it after the commit, when the connections are back in the pool."""
        if not callable(function):
            raise TypeError(f"on_commit() needs a function without arguments, not {function!r}")
        self._on_commit = (*self._on_commit, function)

    def roll_back_connection(self, locks: Mark, savepoints: Collection[str]) -> None:
        """Forget what was locked in these savepoints, which the program has rolled back itself."""
        if self.failed is not None:
            self.failed.note_savepoints_undone(savepoints)
        self.connections.note_savepoint_undone()
        self.instrumentation.report_released(self.ledger.roll_back_to(locks), "rolled back")

    def note_abort(self, connection: Connection, error: BaseException) -> None:
        """Note that an error has aborted the transaction at the server, or its savepoint."""
        events = self.connections.events_of(connection)
        savepoint = None if events is None else events.innermost
        if savepoint is None:
            self.failure.note_abort(error)
            return
        name, locks = savepoint
        self.failure.note_abort(error, within=name)
        self.instrumentation.report_released(self.ledger.roll_back_to(locks), "lost")

    # Events of the session's transaction, in the order in which they come.

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what there is now, before the savepoint is set."""
        self._marks[savepoint] = self.ledger.mark(), len(self._on_commit)
        self.connections.before_savepoint()

    def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Forget what came after this savepoint."""
        locks, functions = self._marks.pop(savepoint)
        self._on_commit = self._on_commit[:functions]
        self.connections.note_savepoint_undone()
        self.instrumentation.report_released(self.ledger.roll_back_to(locks), "rolled back")

    def flush_has_rolled_back(self, savepoint: SessionTransaction | None) -> None:
        """Forget what a failed flush has undone, before ``rollback()`` is called.

        :param savepoint: to which it has rolled back; None where the transaction is gone.
        """
        if savepoint is None:
            released = self.ledger.clear()
        else:
            locks, _ = self._marks[savepoint]
            released = self.ledger.roll_back_to(locks)
        self.instrumentation.report_released(released, "rolled back")

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
            if self.connections.lost() and not self.ledger.empty:
                self.note_lost()
                if self.lost:
                    self._refuse_lost(self.lost)
            self.connections.before_commit()
            self.commits_now = True
            if self.pipeline is not None:
                self.pipeline.before_commit()

    def after_commit(self) -> None:
        """Note that the databases have committed."""
        if self.session().in_nested_transaction():
            return
        if self.pipeline is not None:
            self.pipeline.send_writes()
        self._committed = True
        self.commits += 1
        self.connections.after_commit()

    def after_rollback(self) -> None:
        """Drop what waits in a pipeline, before the connections are given back."""
        if self.pipeline is not None:
            self.pipeline.discard()
        self.connections.note_server_idle()

    def end(self) -> None:
        """End: forget all locks, restore lent connections, call the functions of on_commit()."""
        committed, self._committed = self._committed, False
        self.began_by_savepoint = self.commits_now = False
        self.lost = None
        if self.routing is not None:
            self.routing.end()
        released = self.ledger.clear()
        try:
            self.connections.close()
            if self.pipeline is not None:
                self.pipeline.end()
            if self.failed is not None:
                self.failed.end()
            if released:
                outcome = "committed" if committed else "rolled back"
                self.instrumentation.report_released(released, outcome)
        finally:
            functions, self._on_commit = self._on_commit, ()
            if committed and functions:
                _call(functions)

    def forget_functions(self) -> None:
        """Drop the functions of on_commit() where no transaction had begun, so that none ends."""
        if self._on_commit and not self.session().in_transaction():
            self._on_commit = ()


def _call(functions: Sequence[Callable[[], object]]) -> None:
    """Call all of them; then raise the first interruption, or else the first error."""
    failed: list[tuple[Callable[[], object], BaseException]] = []
    for function in functions:
        try:
            function()
        except BaseException as error:  # noqa: BLE001, PERF203  # it must not stop the others
            failed.append((function, error))
    if not failed:
        return
    _, raised = next((one for one in failed if not isinstance(one[1], Exception)), failed[0])
    for function, other in failed:
        if other is not raised:
            _log.error("on_commit: %r failed, as another did", function, exc_info=other)
    raise raised
