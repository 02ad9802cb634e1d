"""The session events that keep a LockContext true, and the methods that end a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import InstanceState, Mapper, SessionTransaction
from sqlalchemy.orm.interfaces import EXT_CONTINUE

from ..dialects import strategies
from ..documents import any_declared, any_versioned, listen_for_documents, raise_versions
from ..events import EventfulSession
from ..guard import Write, checked_rows, not_checked, note_refresh
from ..locking import LockContext
from ..transaction import translate_errors


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
    if strategy is not None and strategy.notes_begin and not transaction.nested:
        strategy.note_begin(connection)
    translate_errors(connection, context)
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
    """Refuse to write in a snapshot, and to write to a document without its lock."""
    context = session._context
    context.refuse_write()
    if context.loaded is not None:
        context.loaded.note_flush()
    if any_declared():
        context.check_flush()
        if any_versioned():
            raise_versions(session)


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


# Events of the rows of declared documents, and of no others.

# Global, as mappers are: each is listened to once, for all sessions of the process.
_followed: WeakSet[Mapper[Any]] = WeakSet()
_following = Lock()  # a thread that finds a mapper followed must find its listeners, too


@listen_for_documents
def _follow(mappers: Collection[Mapper[Any]]) -> None:
    with _following:
        for mapper in _outermost(mappers):
            if mapper not in _followed:
                _followed.add(mapper)
                event.listen(mapper.class_, "refresh", note_refresh, raw=True, propagate=True)
                for name, check in _WRITES.items():
                    # With retval, or SQLAlchemy puts a function around ours, for each row a call.
                    event.listen(mapper, name, check, raw=True, propagate=True, retval=True)


def _outermost(mappers: Collection[Mapper[Any]]) -> Iterator[Mapper[Any]]:
    """Yield those that are no subclass of another, whose listeners they have already."""
    for mapper in mappers:
        if not any(mapper is not other and mapper.isa(other) for other in mappers):
            yield mapper


def _on_write(write: Write) -> Callable[..., Any]:
    def check(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> Any:
        session = state.session
        if isinstance(session, SessionWithContext):
            guard = session._context.guard
            if not guard.checked.get(state, not_checked)(state.committed_state):
                guard.check_row(state, write)
        return EXT_CONTINUE

    return check


_check_update = _on_write(Write.UPDATE)


# A flush may change thousands of rows, and mostly the look of their sessions would be the same.


def _before_update(mapper: Mapper[Any], connection: Connection, state: InstanceState[Any]) -> Any:
    # Of a row that was checked the document is held; another, which it comes to, is checked after.
    if state not in checked_rows():
        _check_update(mapper, connection, state)
    return EXT_CONTINUE


def _after_update(mapper: Mapper[Any], connection: Connection, state: InstanceState[Any]) -> Any:
    if not checked_rows().get(state, not_checked)(state.committed_state):
        _check_update(mapper, connection, state)
    return EXT_CONTINUE


# After the row was written no hook can change it any more, and raising takes it back; before,
# the database still tells what an expired row was.
_WRITES = {
    "after_insert": _on_write(Write.INSERT),
    "before_update": _before_update,
    "after_update": _after_update,
    "before_delete": _on_write(Write.DELETE),
}
