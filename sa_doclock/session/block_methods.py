"""The blocks of a session that take a lock and end with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, overload
from weakref import ref

from sqlalchemy import Select, inspect
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.interfaces import ORMOption

from ..checkout_info import Checkout
from ..core.documents import identity_of, mapper_of
from ..core.session import CoreSession, check_block_lock, key_of, no_result
from ..core.statements import locked_entity_of, locked_select
from ..core.transaction import LockRequest, given, refuse_lost_block
from ..options import LockOptions, LockTimeout, base_of, check_lock, check_wait

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

_NO_IDENT: Final[Any] = object()


class _How(TypedDict, total=False):
    lock_timeout: LockTimeout
    options: Sequence[ORMOption]
    version: Any
    checkout: Checkout | int | None


class BlockMethods(CoreSession):
    """A Session with the blocks that take a lock."""

    @overload
    def locked(
        self, entity: type[T], ident: Any, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...

    @overload
    def locked(
        self, entity: Select[tuple[T]], *, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...  # SQLAlchemy 2.0

    @overload
    def locked(
        self, entity: Select[T], *, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...  # SQLAlchemy 2.1

    @overload
    def locked(
        self, entity: T, *, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...

    def locked(
        self,
        entity: Any,
        ident: Any = _NO_IDENT,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> AbstractContextManager[Any]:
        """Return a block that holds the lock of one document: ``with session.locked(Order, 42) as order:``.

        Under asyncio it is ``async with``.

        The block takes the lock when it begins.  At its end it calls :meth:`save_changes` after
        ForUpdate, or :meth:`release_locks` after a read lock.  An exception rolls back and propagates.

        The block leaves the transaction open if it is nested in another block, or if the transaction
        already holds locks, was opened by ``begin()``, or has an open savepoint.  A block with a read
        lock also leaves a transaction open that an earlier statement began.

        If an exception leaves a block in a transaction that already held locks, and you catch it further
        out, the transaction refuses to commit until ``rollback()``, because half of the block's work
        would be saved.  To go on instead, put a savepoint (``begin_nested()``) around the block.

        For the other parameters and errors see :meth:`get_entity`.

        Example::

            with session.locked(Order, 42, lock_timeout=5) as order:
                order.total += 1

        :param entity: a mapped class, with ``ident`` as for :meth:`get_entity`; or an object, as
            for :meth:`lock`; or a select of one mapped class that returns exactly one row.  A
            select with a lock by :func:`with_lock` keeps that lock.
        :raises sqlalchemy.exc.NoResultFound: there is no such row.
        :raises sqlalchemy.exc.MultipleResultsFound: the select returns several.
        :raises ValueError: a lock that locks nothing; a select of columns or of several classes.
        """
        take = partial(
            self._take_one,
            lock_timeout=lock_timeout,
            options=options,
            version=version,
            checkout=checkout,
        )
        return self._block(entity, ident, lock, take, "locked")

    @overload
    def locked_document(
        self, entity: type[T], ident: Any, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...

    @overload
    def locked_document(
        self, entity: Select[tuple[T]], *, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...  # SQLAlchemy 2.0

    @overload
    def locked_document(
        self, entity: Select[T], *, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...  # SQLAlchemy 2.1

    @overload
    def locked_document(
        self, entity: T, *, lock: LockOptions = ..., **how: Unpack[_How]
    ) -> AbstractContextManager[T]: ...

    def locked_document(
        self,
        entity: Any,
        ident: Any = _NO_IDENT,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> AbstractContextManager[Any]:
        """Return a block that holds the lock of one document and loads all its parts.

        It works as :meth:`locked`, with the same parameters and errors, and loads the parts as those of
        a :meth:`get_document`.  Under asyncio it is ``async with``.

        Example::

            with session.locked_document(Order, 42) as order:
                order.total = sum(line.value for line in order.lines)
        """
        take = partial(
            self._take_document,
            lock_timeout=lock_timeout,
            options=options,
            version=version,
            checkout=checkout,
        )
        return self._block(entity, ident, lock, take, "locked_document")

    def locked_documents(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> AbstractContextManager[list[T]]:
        """Return a block that holds the locks of several documents and loads all their parts.

        The block begins and ends as that of :meth:`locked`.  Under asyncio it is ``async with``.  It
        locks the documents in ascending key order, as :meth:`get_documents` does, and returns them in
        the order of ``idents``, even if a key is repeated.

        Example::

            with session.locked_documents(Order, [42, 43]) as [source, target]:
                source.total -= 5
                target.total += 5

        :raises sqlalchemy.exc.NoResultFound: a key has no row.
        :raises ValueError: SkipLocked, which would leave out a document.
        """
        if LockOptions.SkipLocked in check_lock(lock):
            raise ValueError("locked_documents() locks all or none: leave out SkipLocked")
        # An iterator can be read only once.  get_documents() refuses anything that is not iterable.
        once = isinstance(idents, Iterable) and not isinstance(idents, Collection)
        keys = list(idents) if once else idents

        def take(_: Any, __: Any, lock: LockOptions) -> list[T]:
            found = self.get_documents(
                entity, keys, lock, lock_timeout=lock_timeout, options=options
            )
            return _one_for_each(self, mapper_of(entity), found, keys)

        return self._block(entity, keys, lock, take, "locked_documents")

    def _block(
        self,
        entity: Any,
        ident: Any,
        lock: LockOptions,
        take: Callable[[Any, Any, LockOptions], T],
        name: str,
    ) -> AbstractContextManager[T]:
        """Return the block.  :raises TypeError, ValueError: the lock is wrong, before any ``with``."""
        lock = _lock_of_block(entity, ident, lock, name)
        return self._locked_block(lock, partial(take, entity, ident, lock))

    @contextmanager
    def _locked_block(self, lock: LockOptions, take: Callable[[], T]) -> Iterator[T]:
        opens, inner = not self.in_transaction(), bool(self._context.ledger.places)
        writes = base_of(lock) is LockOptions.ForUpdate
        # After ForUpdate, commit even a transaction that an earlier read began, as save_changes()
        # does.  After a read lock, do not roll it back: it may contain the program's changes.
        ends = opens or (writes and not inner and self._ends_here())
        document = self._take_or_roll_back(take, opens=opens)
        transaction = self._context.transaction
        refuse = partial(refuse_lost_block, transaction, document, self)
        try:
            if writes:
                self._context.blocks += (ref(refuse),)
            yield document
            if writes:
                refuse()
            if ends:
                end = self.save_changes if writes else self.release_locks
                end()
        except BaseException as error:
            if ends:
                self._context.roll_back_quietly()
            elif inner:
                transaction.note_half_done(error)
            raise
        finally:
            self._context.blocks = tuple(b for b in self._context.blocks if b() is not refuse)

    def _take_or_roll_back(self, take: Callable[[], T], *, opens: bool) -> T:
        try:
            return take()
        except BaseException:
            if opens:
                self._context.roll_back_quietly()
            raise

    def _take_one(self, entity: Any, ident: Any, lock: LockOptions, **how: Any) -> Any:
        if ident is _NO_IDENT:
            if isinstance(entity, Select):
                return self._take_selected(entity, lock, **how)
            entity, ident = key_of(self, entity)
        return self.get_one_entity(entity, ident, lock, **how)

    def _take_document(self, entity: Any, ident: Any, lock: LockOptions, **how: Any) -> Any:
        if ident is not _NO_IDENT:
            return self.get_one_document(entity, ident, lock, **how)
        found = self._take_one(entity, ident, lock, **how)
        self._load_parts([found], lock)
        return found

    def _take_selected(
        self,
        statement: Select[Any],
        lock: LockOptions,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> Any:
        mapper = _selected_mapper(statement)
        arguments = given(version, checkout)
        request = LockRequest(mapper.class_, None, lock, mapper=mapper, given=arguments)
        self._check_request(request)
        if locked_entity_of(statement) is None:
            lock, seconds = check_wait(lock, lock_timeout)
            statement = locked_select(statement, lock, None, seconds)
        elif lock_timeout is not None:
            raise ValueError("the select already has a lock: give lock_timeout to its with_lock()")
        statement = statement.options(*options)
        locked = locked_entity_of(statement)
        assert locked is not None
        result = self._execute_locked(locked, statement, None, {}, arguments)
        found = result.scalars().unique().one()
        self._check_found(request, found)
        return found


def _lock_of_block(entity: Any, ident: Any, lock: LockOptions, name: str) -> LockOptions:
    """Return the block's lock: the select's, or the given one.

    :raises TypeError: a lock was passed as the primary key.
    :raises ValueError: the lock locks nothing.
    """
    if isinstance(ident, LockOptions):
        misplaced = ident
        raise TypeError(f"pass the lock of {name}() as a keyword: lock={misplaced}")
    own = locked_entity_of(entity) if isinstance(entity, Select) else None
    if own is not None:
        lock = own.lock
    check_block_lock(lock, name)
    return lock


def _selected_mapper(statement: Select[Any]) -> Mapper[Any]:
    """Return the mapper of the statement's only entity.

    :raises TypeError: it selects tables and no mapped class.
    :raises ValueError: it selects columns or several entities.
    """
    described = statement.column_descriptions
    if not any("entity" in column for column in described):
        raise TypeError(
            "locked() needs an ORM select such as select(Order), because it returns an object"
        )
    entity = described[0]["entity"] if len(described) == 1 else None
    if entity is None or described[0]["expr"] is not entity:
        raise ValueError("locked() needs a select of exactly one mapped class")
    mapper: Mapper[Any] = inspect(entity).mapper
    return mapper


def _one_for_each(
    session: Session, mapper: Mapper[Any], found: Sequence[T], idents: Iterable[Any]
) -> list[T]:
    """Return the object of each key, in the order of the keys.

    :raises sqlalchemy.exc.NoResultFound: a key has no row.
    """
    by_key = {tuple(mapper.primary_key_from_instance(row)): row for row in found}
    locked = {id(row) for row in found}
    objects = []
    for ident in idents:
        identity = identity_of(mapper, ident)
        row = by_key.get(identity)
        if row is None:  # the database may compare "ABC" and "abc" as equal
            with session.no_autoflush:
                row = session.get(mapper.class_, identity)
        if row is None or id(row) not in locked:
            raise no_result(mapper.class_, ident)
        objects.append(row)
    return objects
