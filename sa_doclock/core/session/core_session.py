"""The session of the core: it locks documents, and has no feature until parts are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Engine, TableClause
from sqlalchemy.orm import SessionTransactionOrigin

from ...errors import LockMisuse
from ...keys import DocumentKey
from ...options import LockOptions
from ..transaction import Condition
from .hooks import context_of
from .lock_methods import LockMethods


class CoreSession(LockMethods):
    """A Session that locks documents; :class:`LockingSession` adds the features."""

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """The documents that this transaction holds: ``{(Order, (42,)): LockOptions.ForUpdate}``.

        Read-only.  Empty after commit, rollback and close, and when the connection is lost.  After
        prepare() it has only the locks that every database keeps until the commit.

        After ``text()``, DDL and other statements that may have ended the transaction, a LockingSession
        asks the server.  Under asyncio a property cannot: it returns the last known locks until the next
        flush, lock or commit.

        Example::

            session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            assert session.held_locks == {(Order, (42,)): LockOptions.ForUpdate}
        """
        _locks_held_by(self, ask=True)
        return HeldLocks(self)

    def save_changes(self) -> None:
        """Flush; then commit, unless the caller opened the transaction or a savepoint.

        "Opened" means ``session.begin()``: a transaction that autobegin started, by a lock or an
        earlier read, is committed, and its locks are released.

        Example::

            order = session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            order.total += 1
            session.save_changes()

        :raises LockFailed: the server found a deadlock or conflict only now.
        """
        context = self._context
        if context.transaction.condition is not Condition.OPEN:
            context.transaction.refuse()
        if not self._ends_here():
            self.flush()
            return
        with context.transaction.saving():
            self.flush()
            if self.in_transaction() and not self.in_nested_transaction():
                self.commit()

    def release_locks(self) -> None:
        """Roll back, so that every lock is released and pending changes are lost.

        Without a transaction, it does nothing.

        Example::

            order = session.get_one_entity(Order, 42, LockOptions.SharedRead)
            session.release_locks()

        :raises LockMisuse: the caller opened the transaction by ``begin()``, or a savepoint, and
            must end it.
        """
        parent = self._context.transaction.parent
        if parent is not None:
            parent.refuse()
        if not self._ends_here():
            raise LockMisuse(
                "release_locks() would roll back a transaction that begin() or begin_nested() has "
                "opened: leave that block, or call rollback()"
            )
        if self.in_transaction():
            self.rollback()

    def _ends_here(self) -> bool:
        if self.in_nested_transaction():
            return False
        transaction = self.get_transaction()
        return (
            transaction is None
            or transaction.origin is SessionTransactionOrigin.AUTOBEGIN
            or self._context.transaction.began_by_savepoint
        )

    def bind_mapper(self, mapper: Any, bind: Engine | Connection) -> None:
        """See ``Session.bind_mapper()``."""
        self._note_given(bind)
        super().bind_mapper(mapper, bind)

    def bind_table(self, table: TableClause, bind: Engine | Connection) -> None:
        """See ``Session.bind_table()``."""
        self._note_given(bind)
        super().bind_table(table, bind)


class HeldLocks(Mapping[DocumentKey, LockOptions]):
    """The locks of a session's current transaction, at the time when the mapping is read."""

    def __init__(self, session: CoreSession) -> None:
        self._session = session

    def _held(self) -> Mapping[DocumentKey, LockOptions]:
        return _locks_held_by(self._session, ask=False)

    def __getitem__(self, document: DocumentKey) -> LockOptions:
        return self._held()[document]

    def __iter__(self) -> Iterator[DocumentKey]:
        return iter(self._held())

    def __len__(self) -> int:
        return len(self._held())

    def __repr__(self) -> str:
        return repr(dict(self))


def _locks_held_by(session: CoreSession, *, ask: bool) -> Mapping[DocumentKey, LockOptions]:
    """Return the locks that the session holds.

    :param ask: ask the server if a statement may have ended the transaction; else return the known
        state.
    """
    context = context_of(session)
    root = session.get_transaction()
    if not (root is None or root.is_active):
        return context.connections.prepared_locks(context.ledger.held)
    context.end_if_over()
    if root is None or context.transaction.is_over():
        return MappingProxyType({})  # sends nothing; the next use of the session rolls back
    context.transaction.check_locks(ask=ask)
    if ask:
        context.transaction.verify()
        context.transaction.note_unseen_abort()
    return context.ledger.held
