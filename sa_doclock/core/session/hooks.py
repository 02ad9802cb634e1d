"""The session events that keep a LockContext true, and the methods that end a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import InstanceState, SessionTransaction

from ...dialects import strategies
from ...events import EventfulSession
from ..locking import LockContext
from ..transaction import follow_dialect


class SessionWithContext(EventfulSession):
    """A Session with a LockContext, which follows its transaction."""

    _context: LockContext

    def begin(self, nested: bool = False) -> SessionTransaction:
        """See ``Session.begin()``."""
        # Where begin_nested() is the first call, SQLAlchemy's origin says that begin() was called.
        savepoint_first = nested and not self.in_transaction()
        transaction = super().begin(nested)
        if savepoint_first:
            self._context.began_by_savepoint = True
        return transaction

    def connection(self, *args: Any, **kwargs: Any) -> Connection:
        """See ``Session.connection()``."""
        if self._context.parts.using:
            self._note_bind(args[0] if args else kwargs.get("bind_arguments"))
        connection = super().connection(*args, **kwargs)
        self._context.connections.watch_connection(connection)
        self._context.before_foreign(connection)  # a cursor of the driver's own is not seen
        return connection

    def _note_bind(self, bind_arguments: Mapping[str, Any] | None) -> None:
        """Tell the parts of the database that a call has brought with it."""
        bind = (bind_arguments or {}).get("bind")
        if bind is not None:
            for using in self._context.parts.using:
                using(bind)

    def rollback(self) -> None:
        """See ``Session.rollback()``."""
        context = self._context
        context.verify()
        expected = None if context.failed is None else context.failed.expected_error
        try:
            super().rollback()
        except Exception as error:
            if error is not expected:
                raise
        context.forget()

    def close(self) -> None:
        """See ``Session.close()``."""
        context = self._context
        if context.failed is not None:
            context.verify()
            if context.has_failed():
                # A ROLLBACK that fails would keep the connection from its pool; and after a COMMIT
                # that was refused, SQLAlchemy would give it back without one.
                self.rollback()
        super().close()
        context.forget_objects()
        context.forget()

    def reset(self) -> None:
        """See ``Session.reset()``."""
        super().reset()
        self._context.forget_objects()
        self._context.forget()

    def invalidate(self) -> None:
        """See ``Session.invalidate()``."""
        super().invalidate()
        self._context.forget_objects()
        self._context.forget()


def context_of(session: SessionWithContext) -> LockContext:
    """Return the session's own context."""
    return session._context


# Events of the session, and of its subclasses with it.


@event.listens_for(SessionWithContext, "after_begin", insert=True)
def _after_begin(
    session: SessionWithContext, transaction: SessionTransaction, connection: Connection
) -> None:
    context = session._context
    strategy = strategies.get(connection.dialect)
    if strategy is not None and strategy.lifecycle.notes_begin and not transaction.nested:
        strategy.lifecycle.note_begin(connection)
    follow_dialect(connection, context)
    context.begin(transaction, connection, strategy)


@event.listens_for(SessionWithContext, "after_transaction_create")
def _after_transaction_create(session: SessionWithContext, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session._context.open_savepoint(transaction)


@event.listens_for(SessionWithContext, "after_rollback")
def _after_rollback(session: SessionWithContext) -> None:
    session._context.after_rollback()


@event.listens_for(SessionWithContext, "after_soft_rollback")
def _after_soft_rollback(session: SessionWithContext, transaction: SessionTransaction) -> None:
    session._context.note_rollback(transaction)


@event.listens_for(SessionWithContext, "after_transaction_end")
def _after_transaction_end(session: SessionWithContext, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session._context.end()


@event.listens_for(SessionWithContext, "before_commit")
def _before_commit(session: SessionWithContext) -> None:
    session._context.before_commit()


@event.listens_for(SessionWithContext, "after_commit")
def _after_commit(session: SessionWithContext) -> None:
    session._context.after_commit()


@event.listens_for(SessionWithContext, "before_flush")
def _before_flush(session: SessionWithContext, *_: Any) -> None:
    """Refuse to write in a snapshot, or without locks that were lost; tell the parts."""
    context = session._context
    context.refuse_write()
    if context.loaded is not None:
        context.loaded.note_flush()
    if context.adopted_headers is not None:
        context.adopted_headers.before_flush()
    for before_flush in context.parts.before_flush:
        before_flush(session)


@event.listens_for(SessionWithContext, "transient_to_pending", raw=True)
def _on_add(session: SessionWithContext, state: InstanceState[Any]) -> None:
    context = session._context
    context.added = True
    if context.loaded is not None:
        context.loaded.note(state)


@event.listens_for(SessionWithContext, "detached_to_persistent", raw=True)
@event.listens_for(SessionWithContext, "deleted_to_persistent", raw=True)
def _on_return(session: SessionWithContext, state: InstanceState[Any]) -> None:
    loaded = session._context.loaded
    if loaded is not None:
        loaded.note_again(state)
