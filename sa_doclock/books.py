"""What a LockingSession knows of its own transaction, kept by what SQLAlchemy tells it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import InstanceState, Mapper, SessionTransaction

from .aftermath import Aftermath
from .bulk import BulkGuard
from .declarations import follow_declared
from .dialects import product_of
from .dialects.base import Read
from .errors import DocLockError, WrongIsolation
from .events import EventfulSession
from .gate import DocumentGate
from .guard import Guard, GuardMode, Write
from .ledger import Ledger
from .on_commit import OnCommit
from .options import LockOptions, is_row_lock
from .passage import Passage, Wanted
from .patience import Patience, pause
from .pipelining import Pipelining
from .reads import Reads
from .shapes import statement_of
from .telling import Telling
from .transactions import Participant, Participants

T = TypeVar("T")

_ALONE: Final = nullcontext()


class Books:
    """The books of one session: empty when its transaction has ended."""

    def __init__(
        self,
        session: EventfulSession,
        ranks: Mapping[type[Any], int],
        patience: Patience,
        guard: GuardMode,
        *,
        guard_tracing: bool,
        pipeline: bool = False,
    ) -> None:
        self._session = session
        self.telling = Telling(session)
        self.ledger = Ledger(ranks, heard=self.telling.hears_of_releases)
        self.patience = patience
        self.participants = Participants(session, gives_way=patience.gives_way)
        self.aftermath = Aftermath(session, self.participants, self.ledger, self.telling)
        self.guard = Guard(session, self.ledger, guard)
        self.reads = Reads(self.ledger, tracing=guard_tracing)
        self.on_commit = OnCommit()
        self.passage: Passage | None = None  # through a gate, where there is one
        self.pipelining = Pipelining(self.aftermath) if pipeline else None
        self.binds: tuple[Engine | Connection, ...] = ()  # of the session, beside session.bind

    @cached_property
    def bulk(self) -> BulkGuard:
        """What it may write by statements."""
        return BulkGuard(self._session, self.guard, self.ledger)

    @cached_property
    def _marks(self) -> WeakKeyDictionary[SessionTransaction, tuple[tuple[int, ...], int]]:
        """What there was when each savepoint was set."""
        return WeakKeyDictionary()

    def pass_through(self, gate: DocumentGate) -> None:
        """Queue at this gate.  :raises TypeError: it is none."""
        self.passage = Passage(gate, self._session, self.participants, self.ledger)

    def check(self) -> None:
        """Look at what has become of the transaction, before it is counted on.

        :raises PendingRollbackError: a lock failed, and nothing was rolled back since.
        """
        self.aftermath.refuse()
        if self.participants.lost():
            self.aftermath.lose()

    def take(
        self,
        entity: type[Any] | None,
        ident: Any,
        lock: LockOptions,
        seconds: float | None,
        attempt: Callable[[LockOptions, float | None], T],
        *,
        keys: Sequence[tuple[Any, ...]] = (),
        bind: Engine | Connection | None = None,
    ) -> T:
        """Take a lock: what fails in ``attempt`` is a failed lock, with all that follows.

        :param keys: of the rows, where they are known.
        :param bind: of a named lock.
        """
        if self.passage is not None:
            wanted = Wanted(entity, ident, keys, bind)
            attempt = self.passage.lead(attempt, wanted, self.aftermath.answered)
        with self.aftermath.of_lock(entity, ident, lock, seconds, keys):
            return self.patience.take(lock, seconds, attempt, self._pause)

    def _pause(self, seconds: float) -> None:
        connections = self.participants.connections()
        under_asyncio = any(one.dialect.is_async for one in connections)
        if self.passage is not None and not connections:
            under_asyncio = self.passage.under_asyncio
        pause(seconds, under_asyncio=under_asyncio)

    def waiting(
        self, participant: Participant, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        """Limit the waits of the block; in a batch, a lock that is not available is undone."""
        strategy, connection = participant.strategy, participant.connection
        tries = self.patience.gives_way and LockOptions.NoWait in lock
        limited = (
            strategy.waiting(connection, lock, seconds)
            if self.pipelining is None
            else self.pipelining.locking(connection, seconds)
        )
        if tries and is_row_lock(participant.row_lock(lock)):
            return self.aftermath.undone_by_savepoint(connection, limited)
        return limited

    def reading_ahead(self, reads: Callable[[], Iterable[Read]]) -> AbstractContextManager[None]:
        """What is locked in this block is read on by these statements, which may travel along."""
        return _ALONE if self.pipelining is None else self.pipelining.reading_ahead(reads)

    def committing(self) -> AbstractContextManager[None]:
        """A flush in this block may travel with the COMMIT that follows."""
        return _ALONE if self.pipelining is None else self.pipelining.committing()

    def refuse_write_in_snapshot(self) -> None:
        """:raises WrongIsolation: a SnapshotRead has opened the transaction."""
        if self.participants.read_only():
            raise WrongIsolation(
                "a SnapshotRead has opened this transaction read-only; end it before you write"
            )

    def open_savepoint(self, savepoint: SessionTransaction) -> None:
        """Remember what there was when the savepoint was set."""
        self._marks[savepoint] = self.ledger.mark(), self.on_commit.mark()

    def undone_by_flush(self, savepoint: SessionTransaction | None) -> None:
        """A flush has failed and rolled back, before ``rollback()`` is called.

        :param savepoint: to which it has; None where the transaction is gone.
        """
        if savepoint is None:
            self.telling.released(self.ledger.clear(), "rolled back")
        else:
            locks, _ = self._marks[savepoint]
            self.telling.released(self.ledger.roll_back_to(locks), "rolled back")

    def roll_back_to(self, savepoint: SessionTransaction) -> None:
        """Forget what came since."""
        locks, functions = self._marks.pop(savepoint)
        self.on_commit.roll_back_to(functions)
        self.telling.released(self.ledger.roll_back_to(locks), "rolled back")

    def note_end(self) -> None:
        """The database has committed, or rolled back."""
        self.participants.answered_end((self._session.bind, *self.binds))

    def close(self) -> None:
        """The transaction is over; what it has promised is done now, or never."""
        outcome = "committed" if self.on_commit.was_committed else "rolled back"
        released = self.ledger.clear()
        try:
            self.participants.ended()
            if self.pipelining is not None:
                self.pipelining.ended()
            self.aftermath.over()
            self.telling.released(released, outcome)
        finally:
            self.on_commit.ended()


class BookkeepingSession(EventfulSession):
    """A Session that knows what its transaction holds; it does nothing with it yet."""

    _books: Books

    if not TYPE_CHECKING:  # the signature is Session's

        def get_bind(self, *args: Any, **kwargs: Any) -> Engine | Connection:
            """See ``Session.get_bind()``."""
            bind = super().get_bind(*args, **kwargs)
            if self._books.passage is not None:
                self._books.passage.refuse_beside(bind)
            return bind

    def _product_of(self, *args: Any, **kwargs: Any) -> str:
        """The name of the database that this is in, also where no connection is to be had."""
        return product_of(super().get_bind(*args, **kwargs).dialect)

    def commit(self) -> None:
        """See ``Session.commit()``."""
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
        if self._books.aftermath.refuses:
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


def books_of(session: BookkeepingSession) -> Books:
    """The session's own books."""
    return session._books


# What SQLAlchemy tells the session of its own transactions, and its subclasses with it.


@event.listens_for(BookkeepingSession, "after_begin")
def _after_begin(
    session: BookkeepingSession, _transaction: SessionTransaction, connection: Connection
) -> None:
    """Note the connection, and the errors that it will meet."""
    session._books.participants.joined(connection)
    session._books.aftermath.watch(connection)
    if session._books.pipelining is not None:
        lent = any(connection is bind for bind in (session.bind, *session._books.binds))
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


@follow_declared
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
    if context is not None and isinstance(context.session, BookkeepingSession):
        books, statement = context.session._books, statement_of(context)
        books.reads.note(state, statement)
        if statement.is_dml:  # INSERT .. RETURNING
            books.guard.note_returned(state, statement)
