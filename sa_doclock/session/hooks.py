"""The session events that keep a LockContext true, and the methods that end a transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import InstanceState, Mapper, SessionTransaction

from ..documents import any_declared, listen_for_documents
from ..errors import DocLockError
from ..events import EventfulSession
from ..guard import LOAD_RECORD, Write, record_load
from ..locking import LockContext
from ..sqlalchemy_internals import closes_connection, statement_of


class SessionWithContext(EventfulSession):
    """A Session with a LockContext, which follows its transaction."""

    _context: LockContext

    def rollback(self) -> None:
        """See ``Session.rollback()``."""
        context = self._context
        expected = context.expected_error()
        try:
            super().rollback()
        except DocLockError as error:
            if error is not expected:
                raise
        context.forget_functions()

    def close(self) -> None:
        """See ``Session.close()``."""
        context = self._context
        if context.has_failed():
            # A ROLLBACK that fails would keep the connection from its pool; and after a COMMIT
            # that was refused, SQLAlchemy would give it back without one.
            self.rollback()
        super().close()
        context.forget_functions()

    def reset(self) -> None:
        """See ``Session.reset()``."""
        super().reset()
        self._context.forget_functions()

    def invalidate(self) -> None:
        """See ``Session.invalidate()``."""
        super().invalidate()
        self._context.forget_functions()


def context_of(session: SessionWithContext) -> LockContext:
    """Return the session's own context."""
    return session._context


# Events of the session, and of its subclasses with it.


@event.listens_for(SessionWithContext, "after_begin")
def _after_begin(
    session: SessionWithContext, transaction: SessionTransaction, connection: Connection
) -> None:
    context = session._context
    context.connections.add(connection)
    if context.pipeline is not None:
        context.pipeline.add(connection, lent=not closes_connection(transaction, connection))


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
    context.connections.refuse_write_in_snapshot()
    if any_declared():
        context.guard.check_flush()


# Events of the rows of declared documents, and of no others.

# Global, as mappers are: each is listened to once, for all sessions of the process.
_followed: WeakSet[Mapper[Any]] = WeakSet()


@listen_for_documents
def _follow(mappers: Collection[Mapper[Any]]) -> None:
    for mapper in _outermost(mappers):
        if mapper not in _followed:
            _followed.add(mapper)
            for name in ("load", "refresh"):
                event.listen(mapper.class_, name, _on_load, raw=True, propagate=True)
            for name, write in _WRITES.items():
                event.listen(mapper, name, _on_write(write), raw=True, propagate=True)


def _outermost(mappers: Collection[Mapper[Any]]) -> Iterator[Mapper[Any]]:
    """Yield those that are no subclass of another, whose listeners they have already."""
    for mapper in mappers:
        if not any(mapper is not other and mapper.isa(other) for other in mappers):
            yield mapper


# After the row was written no hook can change it any more, and raising takes it back; before,
# the database still tells what an expired row was.
_WRITES = {
    "after_insert": Write.INSERT,
    "before_update": Write.UPDATE,
    "after_update": Write.UPDATE,
    "before_delete": Write.DELETE,
}


def _on_write(write: Write) -> Callable[..., None]:
    def check(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> None:
        session = state.session
        if isinstance(session, SessionWithContext):
            session._context.guard.check_row(state, write)

    return check


def _on_load(state: InstanceState[Any], context: Any, *_: object) -> None:
    if context is None:
        return
    read = context.attributes.get(LOAD_RECORD)  # of one execution; every row asks, so once for all
    if read is None:
        if not isinstance(context.session, SessionWithContext):
            return
        statement = statement_of(context)
        read = context.session._context.provenance.record_for(statement)
        context.attributes[LOAD_RECORD] = read
    record_load(state, read)
    if read.statement.is_dml:  # INSERT .. RETURNING
        context.session._context.guard.record_returned(state, read.statement)
