"""The state of one session's transaction, which is empty when the transaction has ended."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from sqlalchemy.orm import SessionTransaction

from ..events import EventfulSession
from ..monitoring import Diagnosis, LockInstrumentation
from ..session_ref import session_ref
from .connections import TransactionConnections
from .failed import FailedTransaction
from .ledger import Ledger, Mark
from .on_commit import OnCommit
from .pipeline import SessionPipeline

if TYPE_CHECKING:
    from .lock_call import LockCall


class TransactionState:
    """The connections, locks and failure of one session's transaction.

    It does not keep its session alive: a Session that nobody refers to any more is freed at once,
    and what it has loaded with it.  ``session()`` returns it; only what the session itself calls
    may do so.

    :param ranks: the declared order of locking.
    """

    call: LockCall | None = None
    """The call for a lock that is under way."""

    diagnosis: Diagnosis | None = None
    """Adds to an error who holds the lock, where the session was made with ``diagnose=True``."""

    pipeline: SessionPipeline | None = None
    """Sends statements together, where the session was made with ``pipeline=True``."""

    commits = 0
    """The number of transactions that this session has committed so far."""

    _committed = False
    failed: FailedTransaction | None = None
    """The failure, because of which all is refused; None in a session where nothing has failed."""

    _on_commit: OnCommit | None = None

    def __init__(
        self,
        session: EventfulSession,
        ranks: Mapping[type[Any], int],
        *,
        low_priority: bool = False,
    ) -> None:
        self.session = session_ref(session)
        self.instrumentation = LockInstrumentation(session)
        self.ledger = Ledger(ranks, self.instrumentation.has_release_listener)
        self.connections = TransactionConnections(
            self.session, ref(self), low_priority=low_priority
        )

    # What most transactions have no use for is made at its first use.

    @property
    def failure(self) -> FailedTransaction:
        """The same, made where it is not there yet."""
        if self.failed is None:
            self.failed = FailedTransaction(self.session, self.connections, self.lose_locks)
        return self.failed

    @property
    def on_commit(self) -> OnCommit:
        """The functions to call after the commit."""
        if self._on_commit is None:
            self._on_commit = OnCommit()
        return self._on_commit

    @cached_property
    def _marks(self) -> WeakKeyDictionary[SessionTransaction, tuple[Mark, int]]:
        """The numbers of locks and functions at each savepoint."""
        return WeakKeyDictionary()

    def refuse_failed(self) -> None:
        """:raises PendingRollbackError: a lock failed, and nothing was rolled back since."""
        if self.failed is not None:
            self.failed.refuse()

    def lose_locks(self) -> None:
        """Forget all locks: the server has given them up, though the transaction goes on here."""
        self.instrumentation.report_released(self.ledger.clear(), "lost")

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

    # Events of the session's transaction, in the order in which they come.

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what there is now, before the savepoint is set."""
        functions = 0 if self._on_commit is None else self._on_commit.mark()
        self._marks[savepoint] = self.ledger.mark(), functions
        self.connections.before_savepoint()

    def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Forget what came after this savepoint."""
        locks, functions = self._marks.pop(savepoint)
        if self._on_commit is not None:
            self._on_commit.roll_back_to(functions)
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
            self.connections.before_commit()
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
            if self._on_commit is not None:
                self._on_commit.end(committed=committed)

    def forget_functions(self) -> None:
        """Drop the functions of on_commit() where no transaction had begun, so that none ends."""
        if self._on_commit is not None and not self.session().in_transaction():
            self._on_commit.clear()
