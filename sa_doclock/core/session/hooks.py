"""The session events that keep a LockContext true, and the methods that end a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import InstanceState, SessionTransaction

from ...dialects import strategies
from ...dialects.base import LockStrategy
from ...events import EventfulSession
from ..sqlalchemy_internals import closes_connection
from ..transaction import FirstUse, LockContext, Mark, follow_dialect


class TransactionEvents:
    """Has the state of a transaction, and the parts of the session, follow the session's events.

    The methods are in the order in which the events come.
    """

    commits = 0
    """The number of transactions that this session has committed so far."""

    began_by_savepoint = False
    """True if the transaction has begun with ``begin_nested()``, and not with ``begin()``."""

    _committed = False

    def __init__(self, context: LockContext) -> None:
        self._session, self._state = context.session, context.transaction
        self._parts = context.parts

    @FirstUse
    def _marks(self) -> WeakKeyDictionary[SessionTransaction, Mark]:
        """The locks, and the marks of the parts, at each savepoint."""
        return WeakKeyDictionary()

    def note_savepoint_first(self) -> None:
        """Note that the transaction has begun with ``begin_nested()``."""
        self.began_by_savepoint = True

    def begin(
        self,
        transaction: SessionTransaction,
        connection: Connection,
        strategy: LockStrategy | None,
    ) -> None:
        """Note a connection that has begun its part of the transaction, or a savepoint in it."""
        self._state.connections.add(connection, strategy)
        if self._state.failure.occurred:
            self._state.failure.note_joined()
        for begun in self._parts.begun:
            begun(connection, lent=not closes_connection(transaction, connection))

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what there is now, before the savepoint is set."""
        self._marks[savepoint] = self._state.mark()
        self._state.connections.before_savepoint()

    def note_rollback(self, transaction: SessionTransaction) -> None:
        """Note the rollback of the transaction, of a savepoint or of a flush."""
        if transaction.nested:
            self._state.roll_back_to(self._marks.pop(transaction))
        elif transaction.parent is not None:
            self._note_rollback_of_flush()
        self._state.failure.note_rollback(transaction)

    def _note_rollback_of_flush(self) -> None:
        """Forget what a failed flush has undone, before ``rollback()`` is called."""
        savepoint = self._session().get_nested_transaction()
        locks = None if savepoint is None else self._marks[savepoint][0]  # None: all is undone
        self._state.release(locks, "rolled back")

    def before_commit(self) -> None:
        """:raises PendingRollbackError: the transaction has failed, and cannot be committed."""
        if self._state.failure.occurred:
            self._state.failure.refuse_commit()
        if not self._session().in_nested_transaction():
            self._state.refuse_commit()
            self._state.connections.before_commit()
            for before_commit in self._parts.before_commit:
                before_commit()

    def after_commit(self) -> None:
        """Note that the databases have committed."""
        if self._session().in_nested_transaction():
            return
        for after_commit in self._parts.after_commit:
            after_commit()
        self._committed = True
        self.commits += 1
        self._state.connections.after_commit()

    def after_rollback(self) -> None:
        """Drop what waits to be sent, before the connections are given back."""
        self._state.discard()
        self._state.connections.note_server_idle()

    def end(self) -> None:
        """Note that the transaction has ended: by COMMIT, if ``after_commit()`` came before."""
        committed, self._committed = self._committed, False
        self.began_by_savepoint = False
        with ExitStack() as stack:  # each part is told, whatever an interruption or another meets
            for ended in reversed(self._parts.ended):
                stack.callback(ended, committed=committed)
            self._state.end("committed" if committed else "rolled back")


class SessionWithContext(EventfulSession):
    """A Session with a LockContext, which follows its transaction."""

    _context: LockContext
    _transaction_events: TransactionEvents

    def begin(self, nested: bool = False) -> SessionTransaction:
        """See ``Session.begin()``."""
        # Where begin_nested() is the first call, SQLAlchemy's origin says that begin() was called.
        savepoint_first = nested and not self.in_transaction()
        transaction = super().begin(nested)
        if savepoint_first:
            self._transaction_events.note_savepoint_first()
        return transaction

    def connection(self, *args: Any, **kwargs: Any) -> Connection:
        """See ``Session.connection()``."""
        if self._context.parts.using:
            self._note_bind(args[0] if args else kwargs.get("bind_arguments"))
        connection = super().connection(*args, **kwargs)
        self._context.connections.watch_connection(connection)
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
        context.failure.verify()
        expected = context.failure.expected_error
        try:
            super().rollback()
        except Exception as error:
            if error is not expected:
                raise
        context.forget()

    def close(self) -> None:
        """See ``Session.close()``."""
        context = self._context
        context.failure.verify()
        if context.failure.cause is not None:
            # A ROLLBACK that fails would keep the connection from its pool; and after a COMMIT
            # that was refused, SQLAlchemy would give it back without one.
            self.rollback()
        super().close()
        context.forget_objects()

    def reset(self) -> None:
        """See ``Session.reset()``."""
        super().reset()
        self._context.forget_objects()

    def invalidate(self) -> None:
        """See ``Session.invalidate()``."""
        super().invalidate()
        self._context.forget_objects()


def context_of(session: SessionWithContext) -> LockContext:
    """Return the session's own context."""
    return session._context


def commits_of(session: SessionWithContext) -> int:
    """Return the number of transactions that the session has committed so far."""
    return session._transaction_events.commits


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
    session._transaction_events.begin(transaction, connection, strategy)


@event.listens_for(SessionWithContext, "after_transaction_create")
def _after_transaction_create(session: SessionWithContext, transaction: SessionTransaction) -> None:
    if transaction.nested:
        session._transaction_events.open_savepoint(transaction)


@event.listens_for(SessionWithContext, "after_rollback")
def _after_rollback(session: SessionWithContext) -> None:
    session._transaction_events.after_rollback()


@event.listens_for(SessionWithContext, "after_soft_rollback")
def _after_soft_rollback(session: SessionWithContext, transaction: SessionTransaction) -> None:
    session._transaction_events.note_rollback(transaction)


@event.listens_for(SessionWithContext, "after_transaction_end")
def _after_transaction_end(session: SessionWithContext, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session._transaction_events.end()


@event.listens_for(SessionWithContext, "before_commit")
def _before_commit(session: SessionWithContext) -> None:
    session._transaction_events.before_commit()


@event.listens_for(SessionWithContext, "after_commit")
def _after_commit(session: SessionWithContext) -> None:
    session._transaction_events.after_commit()


@event.listens_for(SessionWithContext, "before_flush")
def _before_flush(session: SessionWithContext, *_: Any) -> None:
    """Refuse to write in a snapshot, or without locks that were lost; tell the parts."""
    context = session._context
    context.transaction.refuse_write()
    context.loaded.note_flush()
    for before_flush in context.parts.before_flush:
        before_flush(session)


@event.listens_for(SessionWithContext, "transient_to_pending", raw=True)
def _on_add(session: SessionWithContext, state: InstanceState[Any]) -> None:
    session._context.loaded.note_added(state)


@event.listens_for(SessionWithContext, "detached_to_persistent", raw=True)
@event.listens_for(SessionWithContext, "deleted_to_persistent", raw=True)
def _on_return(session: SessionWithContext, state: InstanceState[Any]) -> None:
    session._context.loaded.note_again(state)
