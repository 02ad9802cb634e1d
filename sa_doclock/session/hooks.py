"""A Session whose books are kept by what SQLAlchemy tells it, and by its own ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import update_wrapper
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import InstanceState, Mapper, SessionTransaction

from ..dialects import product_of
from ..documents import listen_for_documents
from ..errors import DocLockError
from ..events import EventfulSession
from ..guard import LOAD_RECORD, Write, record_load
from ..locking import LockContext
from ..sqlalchemy_internals import statement_of
from ..transaction import was_lent


class _Commit:
    """``Session.commit()`` itself, save in a session that sends it by a pipeline.

    A method of ours around it would be what SQLAlchemy's warnings of a commit are about, in the
    place of the program's line.
    """

    def __init__(self) -> None:
        update_wrapper(self, EventfulSession.commit)

    def __get__(self, session: BookkeepingSession | None, owner: type[Any]) -> Callable[..., None]:
        if session is None:
            return self
        if session._books.pipelining is None:
            return super(BookkeepingSession, session).commit
        return session._commit_by_pipeline

    def __call__(self, *session: BookkeepingSession) -> None:
        # A star for create_autospec(), to which this is commit() without arguments.
        (of_session,) = session
        self.__get__(of_session, type(of_session))()


class BookkeepingSession(EventfulSession):
    """A Session that knows what its transaction holds; it does nothing with it yet."""

    _books: LockContext

    if not TYPE_CHECKING:  # the signature is Session's

        def get_bind(self, *args: Any, **kwargs: Any) -> Engine | Connection:
            """See ``Session.get_bind()``."""
            bind = super().get_bind(*args, **kwargs)
            if self._books.passage is not None:
                self._books.passage.refuse_beside(bind)
            return bind

        commit = _Commit()

    def _product_of(self, *args: Any, **kwargs: Any) -> str:
        """The name of the database that this is in, also where no connection is to be had."""
        return product_of(super().get_bind(*args, **kwargs).dialect)

    def _commit_by_pipeline(self) -> None:
        with self._books.committing():
            super().commit()

    def rollback(self) -> None:
        """See ``Session.rollback()``."""
        told = self._books.aftermath.told
        try:
            super().rollback()
        except DocLockError as error:
            if error is not told:
                raise
        self._forget_promises()

    def close(self) -> None:
        """See ``Session.close()``."""
        if self._books.aftermath.cause is not None:
            # A ROLLBACK that fails would keep the connection from its pool; and after a COMMIT
            # that was refused, SQLAlchemy would give it back without one.
            self.rollback()
        super().close()
        self._forget_promises()

    def reset(self) -> None:
        """See ``Session.reset()``."""
        super().reset()
        self._forget_promises()

    def invalidate(self) -> None:
        """See ``Session.invalidate()``."""
        super().invalidate()
        self._forget_promises()

    def _forget_promises(self) -> None:
        # Of a transaction that had not begun there is no event.
        if not self.in_transaction():
            self._books.on_commit.drop()


def books_of(session: BookkeepingSession) -> LockContext:
    """The session's own books."""
    return session._books


# What SQLAlchemy tells the session of its own transactions, and its subclasses with it.


@event.listens_for(BookkeepingSession, "after_begin")
def _after_begin(
    session: BookkeepingSession, transaction: SessionTransaction, connection: Connection
) -> None:
    """Note the connection, and the errors that it will meet."""
    lent = was_lent(transaction, connection)
    session._books.participants.add(connection, lent=lent)
    session._books.failures.watch(connection)
    if session._books.pipelining is not None:
        session._books.pipelining.joined(connection, lent=lent)


@event.listens_for(BookkeepingSession, "after_transaction_create")
def _after_transaction_create(session: BookkeepingSession, transaction: SessionTransaction) -> None:
    """Note what was held when a savepoint was set."""
    if transaction.nested:
        session._books.open_savepoint(transaction)
        session._books.participants.before_savepoint()


@event.listens_for(BookkeepingSession, "after_rollback")
def _after_rollback(session: BookkeepingSession) -> None:
    """Have nothing more of the connections, and note the end, before they are given back."""
    if session._books.pipelining is not None:
        session._books.pipelining.rolled_back()
    session._books.note_end()


@event.listens_for(BookkeepingSession, "after_soft_rollback")
def _after_soft_rollback(session: BookkeepingSession, transaction: SessionTransaction) -> None:
    """Forget what was locked, and what failed, since then."""
    if transaction.nested:
        session._books.roll_back_to(transaction)
    elif transaction.parent is not None:
        session._books.undone_by_flush(session.get_nested_transaction())
    session._books.aftermath.rolled_back(transaction)


@event.listens_for(BookkeepingSession, "after_transaction_end")
def _after_transaction_end(session: BookkeepingSession, transaction: SessionTransaction) -> None:
    """Close the books."""
    if transaction.parent is None:
        session._books.close()


@event.listens_for(BookkeepingSession, "before_commit")
def _before_commit(session: BookkeepingSession) -> None:
    """Commit nothing after a failed lock, or another error that was not rolled back."""
    books = session._books
    books.aftermath.refuse_commit()
    if not session.in_nested_transaction():
        books.participants.commit_begins()
        if books.pipelining is not None:
            books.pipelining.before_commit()


@event.listens_for(BookkeepingSession, "after_commit")
def _after_commit(session: BookkeepingSession) -> None:
    """Note that it was done, for what waits for it."""
    if not session.in_nested_transaction():
        if session._books.pipelining is not None:
            session._books.pipelining.send_writes()
        session._books.participants.commit_returned()
        session._books.on_commit.committed()
        session._books.note_end()


@event.listens_for(BookkeepingSession, "before_flush")
def _before_flush(session: BookkeepingSession, *_: Any) -> None:
    """Write nothing in a snapshot, and nothing to a document without its lock."""
    session._books.refuse_write_in_snapshot()
    session._books.guard.check_flush()


# What it tells of the rows of declared documents, and of no others.

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
    """Those that are no subclass of another, whose listeners they have already."""
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
    def look(_mapper: Mapper[Any], _connection: Connection, state: InstanceState[Any]) -> None:
        session = state.session
        if isinstance(session, BookkeepingSession):
            session._books.guard.check_row(state, write)

    return look


def _on_load(state: InstanceState[Any], context: Any, *_: object) -> None:
    if context is None:
        return
    read = context.attributes.get(LOAD_RECORD)  # of one execution; every row asks, so once for all
    if read is None:
        if not isinstance(context.session, BookkeepingSession):
            return
        books, statement = context.session._books, statement_of(context)
        read = context.attributes[LOAD_RECORD] = books.reads.record_for(statement)
    record_load(state, read)
    if read.statement.is_dml:  # INSERT .. RETURNING
        context.session._books.guard.record_returned(state, read.statement)
