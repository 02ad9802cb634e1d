"""The session events that keep a LockContext up to date, and the methods that end a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import InstanceState, SessionTransaction

from ...dialects import strategies
from ...events import EventfulSession
from ...first_use import FirstUse
from ...interruptions import ErrorsIgnored
from ...sqlalchemy_internals import commits_savepoint, innermost, savepoints_of
from ..session_options import SessionOptions, session_options
from ..transaction import Condition, LockContext, LockTransaction, follow_dialect, watch_connection


class SessionWithContext(EventfulSession):
    """A Session with a LockContext, which follows its transaction."""

    def __init__(self, *args: Any, options: SessionOptions | None = None, **kwargs: Any) -> None:
        self._options = options or session_options(())
        super().__init__(*args, **kwargs)
        for bind in (kwargs.get("binds") or {}).values():
            self._note_given(bind)

    _given_binds: tuple[Engine | Connection, ...] = ()

    def _note_given(self, bind: Engine | Connection) -> None:
        for using in self._context.parts.using:
            using(bind)
        self._given_binds = (*self._given_binds, bind)

    _context: FirstUse[LockContext] = FirstUse(methodcaller("_make_context"))
    """The session's state for its locks; created at its first use."""

    def _make_context(self) -> LockContext:
        """Create this session's context, and return it only when it is complete.

        Otherwise an interruption could leave a session without its guard.
        """
        return LockContext(self, self._options)

    def begin(self, nested: bool = False) -> SessionTransaction:
        """See ``Session.begin()``."""
        # If begin_nested() is the first call, SQLAlchemy's origin says that begin() was called.
        savepoint_first = nested and not self.in_transaction()
        if nested and self._context.transaction.parent is not None:
            self._context.transaction.parent.refuse()
        transaction = super().begin(nested)
        if savepoint_first:
            self._context.transaction.began_by_savepoint = True
        return transaction

    def connection(self, *args: Any, **kwargs: Any) -> Connection:
        """See ``Session.connection()``."""
        context = self._context
        if context.transaction.parent is not None:
            context.transaction.parent.refuse()
        if context.parts.using:
            self._note_bind(args[0] if args else kwargs.get("bind_arguments"))
        connection = super().connection(*args, **kwargs)
        watch_connection(context, connection)
        return connection

    def _note_bind(self, bind_arguments: Mapping[str, Any] | None) -> None:
        bind = (bind_arguments or {}).get("bind")
        if bind is not None:
            for using in self._context.parts.using:
                using(bind)

    def rollback(self) -> None:
        """See ``Session.rollback()``."""
        context = self._context
        transaction = context.transaction
        if transaction.parent is not None:
            transaction.parent.drop()
        transaction.verify()
        # The server may answer ROLLBACK with its reason for having rolled back already.
        expected = transaction.cause() if transaction.condition is Condition.LOST else None
        try:
            super().rollback()
        except Exception as error:
            self._end_rest(super().rollback)
            if error is not expected and not transaction.had_nothing_to_roll_back:
                raise
        finally:
            context.forget()

    def _end_rest(self, end: Callable[[], None]) -> None:
        """End the transactions that an error left open: SQLAlchemy stops at a missing savepoint.

        :param end: the method that failed.  Unlike rollback(), close() does not end the transaction
            of a lent Connection.
        """
        for _ in [*savepoints_of(self), self.get_transaction()]:  # each call ends one of them
            with ErrorsIgnored():
                end()

    def close(self) -> None:
        """See ``Session.close()``."""
        if "_context" not in vars(self):  # it was never used
            super().close()
            return
        transaction: LockTransaction | None = vars(self._context).get("transaction")
        try:
            if transaction is not None and transaction.failures:
                transaction.verify()
                if transaction.cause() is not None:
                    # A failed ROLLBACK would keep the connection from its pool; after a refused
                    # COMMIT, SQLAlchemy would return it without one.
                    self.rollback()
        finally:
            self._end(super().close)

    def reset(self) -> None:
        """See ``Session.reset()``."""
        self._end(super().reset)

    def invalidate(self) -> None:
        """See ``Session.invalidate()``."""
        self._end(super().invalidate)

    def _end(self, end: Callable[[], None]) -> None:
        transaction: LockTransaction | None = vars(self._context).get("transaction")
        if transaction is not None and transaction.parent is not None:
            transaction.parent.drop()
        try:
            end()
        except BaseException:
            self._end_rest(end)
            if transaction is None or not transaction.had_nothing_to_roll_back:
                raise
        finally:
            if "loaded" in vars(self._context):
                self._context.loaded.forget()  # the session has no objects now
            if "transaction" in vars(self._context):
                self._context.forget()


def context_of(session: SessionWithContext) -> LockContext:
    """Return the session's own context."""
    return session._context


def commits_of(session: SessionWithContext) -> int:
    """Return the number of transactions that the session has committed."""
    return session._context.commits if "_context" in vars(session) else 0


# Events of the session and its subclasses, in the order in which they occur.


@event.listens_for(SessionWithContext, "after_transaction_create")
def _after_transaction_create(session: SessionWithContext, transaction: SessionTransaction) -> None:
    context = session._context  # created here: its parts precede everything in the transaction
    if transaction.nested:
        context.transaction.savepoints[transaction] = context.transaction.mark()
        context.connections.before_savepoint()
    elif transaction.parent is None:
        if context.connections.root is not None:
            context.end_transaction()  # an interruption came before the event of its end
        context.connections.root = transaction


@event.listens_for(SessionWithContext, "after_begin", insert=True)
def _after_begin(
    session: SessionWithContext, transaction: SessionTransaction, connection: Connection
) -> None:
    context = session._context
    strategy = strategies.get(connection.dialect)
    follow_dialect(connection, context)
    if transaction.nested and transaction not in context.transaction.savepoints:
        context.transaction.savepoints[transaction] = context.transaction.mark()  # see above
    context.connections.add(connection, strategy)
    if context.transaction.failures:
        context.transaction.refuse_on_connections()
    if context.transaction.outbox is not None:
        context.transaction.outbox.begun(connection, lent=context.connections.is_lent(connection))
    for begun in context.parts.begun:
        begun(connection, lent=context.connections.is_lent(connection))


@event.listens_for(SessionWithContext, "before_commit")
def _before_commit(session: SessionWithContext) -> None:
    """:raises PendingRollbackError: the transaction has failed, and cannot be committed."""
    context = session._context
    whole = not (innermost(session).nested and commits_savepoint(session))
    if context.transaction.condition is not Condition.OPEN:
        context.transaction.refuse_failed_commit(whole=whole)
    if whole:
        context.transaction.refuse_commit()
        for block in context.blocks:
            if (refuse := block()) is not None:
                refuse()
        context.connections.before_commit()
        for before_commit in context.parts.before_commit:
            before_commit()
        if context.transaction.outbox is not None:
            context.transaction.outbox.before_commit()


@event.listens_for(SessionWithContext, "after_commit")
def _after_commit(session: SessionWithContext) -> None:
    context = session._context
    committed = innermost(session)
    if committed.nested:
        context.transaction.savepoints.pop(committed, None)  # its locks remain held
        return
    if context.transaction.outbox is not None:
        context.transaction.outbox.send_writes()
    context.transaction.move(Condition.COMMITTED)
    context.commits += 1
    context.connections.note_answered(committed=True)


@event.listens_for(SessionWithContext, "after_rollback")
def _after_rollback(session: SessionWithContext) -> None:
    context = session._context
    for discard in context.parts.discard:
        discard()
    context.connections.note_answered(committed=False)


@event.listens_for(SessionWithContext, "after_soft_rollback")
def _after_soft_rollback(session: SessionWithContext, transaction: SessionTransaction) -> None:
    """Note the rollback of the transaction, of a savepoint or of a flush."""
    context = session._context
    if transaction.parent is None:
        return  # it has ended already
    if savepoints_of(session) or transaction.nested:
        context.transaction.settle_savepoints()
    else:  # a failed flush has undone everything, before rollback() is called
        context.transaction.release(None, "rolled back")
    context.transaction.note_inner_rollback(transaction)


@event.listens_for(SessionWithContext, "after_transaction_end")
def _after_transaction_end(session: SessionWithContext, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session._context.end_transaction()


@event.listens_for(SessionWithContext, "before_flush")
def _before_flush(session: SessionWithContext, *_: Any) -> None:
    """Refuse to write in a snapshot, or after locks were lost; tell the parts."""
    context = session._context
    context.transaction.refuse_write()
    if "loaded" in vars(context):
        context.loaded.note_flush()
    if context.calls.current is not None:
        context.calls.current.before_flush()
    parts = context.parts
    if parts.guard is not None:
        parts.guard.before_flush(session)
    if parts.versions is not None:
        parts.versions.before_flush(session)
    for before_flush in parts.before_flush:
        before_flush(session)


@event.listens_for(SessionWithContext, "transient_to_pending", raw=True)
def _on_add(session: SessionWithContext, state: InstanceState[Any]) -> None:
    context = session._context
    context.added = True
    if "loaded" in vars(context):
        context.loaded.note(state)


@event.listens_for(SessionWithContext, "detached_to_persistent", raw=True)
def _on_attach(session: SessionWithContext, state: InstanceState[Any]) -> None:
    loaded = session._context.loaded
    loaded.note_again(state)
    loaded.expire_attached(state)


@event.listens_for(SessionWithContext, "deleted_to_persistent", raw=True)
def _on_return(session: SessionWithContext, state: InstanceState[Any]) -> None:
    session._context.loaded.note_again(state)
