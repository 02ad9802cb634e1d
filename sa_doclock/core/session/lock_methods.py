"""The methods of a session that take locks: by key, by keys, by a select.

For a lock, each makes one :class:`LockRequest` and one call of :func:`acquire`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar, get_args, overload

from sqlalchemy import Select, inspect, select
from sqlalchemy.exc import MultipleResultsFound, NoResultFound
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.interfaces import ORMOption
from sqlalchemy.orm.util import AliasedClass

from ...checkout_info import Checkout
from ...errors import DocLockError, LockMisuse
from ...keys import Identity, document_label, key_text, public_key
from ...options import LockOptions, LockTimeout, base_of, check_lock, check_wait
from ..documents import RowKey, identity_of, mapper_of, own_table, root_of
from ..loading import load_parts, reads_of
from ..locking import (
    ManyByKey,
    OneByKey,
    acquire,
    identities_of,
    read_entities,
    read_one,
    single_key,
)
from ..statements import checked_options, locked_entity_of, locked_select
from ..transaction import LockRequest, add_document, database_name, given
from .execute import ExecutingSession

T = TypeVar("T")
ResultOrder = Literal["key", "given"]
_ORDERS: Final = get_args(ResultOrder)

_PLAIN: Final = frozenset({LockOptions.None_, LockOptions.NoLock})
_SKIPPING: Final = frozenset(
    {
        LockOptions.ForUpdate | LockOptions.SkipLocked,
        LockOptions.ForUpdate | LockOptions.NoKey | LockOptions.SkipLocked,
        LockOptions.SharedRead | LockOptions.SkipLocked,
    }
)


class SessionOf21(Protocol):
    """A session of SQLAlchemy 2.1, whose ``select(Order)`` is a ``Select[Order]``: for type checkers.

    That of 2.0 has no ``merge_all()``, and its select is a ``Select[tuple[Order]]``.
    """

    @property
    def merge_all(self) -> Any:  # noqa: D102  # SQLAlchemy's own
        ...


class LockMethods(ExecutingSession):
    """A Session with the methods that take a lock."""

    def get_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> T | None:
        """Return the entity with this primary key, its row locked until the transaction ends.

        The row is read after the lock is granted, so no attribute is older than the lock.
        Collections and details that the session had loaded are read again at their next use.
        Pending changes are not flushed first.

        If the call fails and has begun the transaction itself, the transaction is rolled back.
        Otherwise it refuses further use until ``rollback()``.

        Example::

            order = session.get_entity(Order, 42, LockOptions.ForUpdate, lock_timeout=5)
            if order is not None:
                order.total += 1
            session.commit()

        :param ident: the primary key: a scalar, a tuple in mapper order, or a dict.  Texts are
            converted: ``"42"`` for an integer, the name of a member for an Enum, the usual forms of a
            UUID, a date or a time.
        :param lock: the lock to take; ``LockOptions.None_`` and ``NoLock`` are plain reads.
        :param lock_timeout: seconds (or a timedelta) to wait for another holder, rounded up to
            milliseconds; 0 is NoWait; None: the session's, or else as the server is configured.  It may
            be longer than the server's own limit: on MySQL, a wait that ``innodb_lock_wait_timeout``
            ends then begins again at the end of the queue.
        :param options: loader options, as for ``Session.get()``.
        :param version: the version that the caller has seen, for example in a form; compared with the
            document's after the lock is granted.
        :param checkout: the caller's check-out of the document, or its epoch; with ForUpdate.  None: if
            the session was made with ``checkouts=``, nobody may have it checked out.
        :returns: None if there is no such row.  Nothing is locked then, and another transaction may
            insert it.
        :raises LockNotAvailable: another transaction held the row past ``lock_timeout``.
        :raises DeadlockDetected: run the whole transaction again.
        :raises UnsavedChanges: the entity or its parts have pending changes in this session.
        :raises StaleDocument: the document has another ``version``.  A transaction that was open before
            keeps the lock.
        :raises CheckedOut: somebody has it checked out, and ``checkout`` is None.
        :raises CheckoutLost: it was taken over or checked in since this ``checkout``.
        :raises WrongIsolation: the open transaction cannot protect a document.
        :raises LockUpgradeRefused: this transaction already holds a read lock of it.
        :raises LockNotSupported: this database, table or connection cannot give that lock.
        :raises LockMisuse: the key finds several rows: it is not unique, or a column type of the
            program compares values in another way than the database.
        :raises ValueError: contradictory arguments, a key of the wrong shape, or a value that its column
            cannot have, such as ``"1abc"`` or 1.5 for an integer.  Nothing was sent.
        :raises TypeError: the key has an object, an SQL expression or a list in place of a value.
        """
        context = self._context
        lock, seconds = context.options.resolve(lock, lock_timeout)
        if lock in _SKIPPING:
            raise ValueError(
                "LockOptions.SkipLocked is for sets: get_entity() would return None both for a "
                "missing row and for a held one"
            )
        mapper = mapper_of(entity)
        identity = identity_of(mapper, ident)
        if options:
            options = checked_options(options)
        request = LockRequest(
            entity, ident, lock, seconds, mapper, (identity,), options, {"mapper": mapper}
        )
        if version is not None or checkout is not None:
            request = request._replace(given=given(version, checkout))
            self._check_request(request)
        if lock in _PLAIN:
            context.transaction.refuse()
            found: T | None = read_one(context, request)
            if found is not None and request.given:
                self._check_found(request, found)
            return found
        return acquire(OneByKey(context, request))

    def get_one_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> T:
        """Return the entity as :meth:`get_entity` does, or raise if there is no such row.

        Example::

            order = session.get_one_entity(Order, 42, LockOptions.SharedRead)

        :raises sqlalchemy.exc.NoResultFound: there is no such row.
        """
        found = self.get_entity(
            entity,
            ident,
            lock,
            lock_timeout=lock_timeout,
            options=options,
            version=version,
            checkout=checkout,
        )
        if found is None:
            raise no_result(entity, ident)
        return found

    def lock(
        self,
        instance: T,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T:
        """Lock the row of an object, and read the object again.

        It works as :meth:`get_entity` with the primary key of the object.

        Example::

            order = session.get_one(Order, 42)
            session.lock(order, LockOptions.ForUpdate)
            order.total += 1

        :param instance: a persistent object of this session, without pending changes.
        :returns: the same object.
        :raises LockMisuse: the object is not in this session, or has no row yet.
        :raises sqlalchemy.exc.NoResultFound: another transaction has deleted its row.
        :raises ValueError: a lock that locks nothing.
        """
        check_block_lock(lock, "lock")
        entity, identity = key_of(self, instance)
        return self.get_one_entity(
            entity, identity, lock, lock_timeout=lock_timeout, options=options
        )

    def get_entities(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        order: ResultOrder = "key",
    ) -> list[T]:
        """Return the entities with these primary keys, locked in ascending key order.

        Sessions that lock the same documents in this way do not deadlock, whatever the order of
        ``idents``.  One statement locks up to 32,000 keys (MySQL: 8,000; SQL Server: 2,000; MariaDB,
        SQLite: 900; at most half as many composite keys).  More keys take several statements, in the
        same order.

        For other errors, and the state after a failure, see :meth:`get_entity`.

        Example::

            orders = session.get_entities(Order, [42, 43], LockOptions.ForUpdate)

        :param idents: primary keys as for :meth:`get_entity`; repeated keys are returned once.
        :param lock_timeout: as for :meth:`get_entity`, for each statement.  SQL Server applies it to each
            row.  For more than 50 keys so do PostgreSQL, and MariaDB in whole seconds.
        :param order: of the result: ``"key"`` is ascending key order, ``"given"`` the order of
            ``idents``.  The order of locking is the same for both.
        :returns: the entities, without missing rows and rows that ``SkipLocked`` leaves out.  Across
            several statements, text keys have Python's order.
        :raises TypeError: ``idents`` is not a collection; or as :meth:`get_entity`.
        :raises ValueError: as :meth:`get_entity`; or the keys cannot be ordered.  Keys of an Enum are
            ordered by their stored values.
        """
        if order not in _ORDERS:
            raise ValueError(f'order is "key" or "given", not {order!r}')
        if order == "given":
            idents = list(idents) if isinstance(idents, Iterator) else idents
            found = self.get_entities(
                entity, idents, lock, lock_timeout=lock_timeout, options=options
            )
            return in_given_order(mapper_of(entity), found, idents)
        context = self._context
        lock, seconds = context.options.resolve(lock, lock_timeout)
        mapper = mapper_of(entity)
        identities = identities_of(mapper, idents)
        if options:
            options = checked_options(options)
        ident, binds = single_key(identities), {"mapper": mapper}
        request = LockRequest(entity, ident, lock, seconds, mapper, identities, options, binds)
        if lock in _PLAIN:
            context.transaction.refuse()
            return read_entities(context, request)
        return acquire(ManyByKey(context, request))

    def get_document(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> T | None:
        """Return the entity as :meth:`get_entity` does, with all parts of the document loaded.

        The parts are those that :func:`document` declares, or the one-to-many collections of an entity
        that is not declared, except ``write_only`` and ``dynamic`` ones.  Each kind of part takes one
        statement after the lock is granted.  So under ForUpdate, SharedRead and SnapshotRead header and
        parts are consistent; without a lock, or with NoLock, they may not be.

        Fresh objects are not loaded again, so pending changes of a document that you hold stay.

        Example::

            order = session.get_document(Order, 42, LockOptions.ForUpdate)
        """
        pipeline = self._context.parts.pipeline
        reads: AbstractContextManager[Any] = (
            nullcontext()
            if pipeline is None
            else pipeline.around_document(partial(reads_of, lock=lock))
        )
        with reads:
            found = self.get_entity(
                entity,
                ident,
                lock,
                lock_timeout=lock_timeout,
                options=options,
                version=version,
                checkout=checkout,
            )
            if found is not None:
                self._load_parts([found], lock)
        return found

    def get_one_document(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        version: Any = None,
        checkout: Checkout | int | None = None,
    ) -> T:
        """Return the document as :meth:`get_document` does, or raise if there is no such row.

        Example::

            order = session.get_one_document(Order, 42, LockOptions.ForUpdate)
            order.total = sum(line.value for line in order.lines)

        :raises sqlalchemy.exc.NoResultFound: there is no such row.
        """
        found = self.get_document(
            entity,
            ident,
            lock,
            lock_timeout=lock_timeout,
            options=options,
            version=version,
            checkout=checkout,
        )
        if found is None:
            raise no_result(entity, ident)
        return found

    def get_documents(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
        order: ResultOrder = "key",
    ) -> list[T]:
        """Return the entities as :meth:`get_entities` does, with all parts loaded as by :meth:`get_document`.

        Example::

            orders = session.get_documents(Order, [42, 43], LockOptions.SharedRead)
        """
        found = self.get_entities(
            entity, idents, lock, lock_timeout=lock_timeout, options=options, order=order
        )
        self._load_parts(found, lock)
        return found

    def _load_parts(self, found: Sequence[Any], lock: LockOptions) -> None:
        # "no_autoflush" costs three times as much.
        autoflush = self.autoflush
        try:
            try:
                self.autoflush = False
                load_parts(self, found, lock)
            finally:
                self.autoflush = autoflush
        finally:  # again, in case an interruption hit the line above
            self.autoflush = autoflush

    @overload
    def entity_set(
        self: SessionOf21,
        entity: type[T] | AliasedClass[T],
        lock: LockOptions = ...,
        *,
        lock_timeout: LockTimeout = ...,
    ) -> Select[T]: ...

    @overload
    def entity_set(
        self,
        entity: type[T] | AliasedClass[T],
        lock: LockOptions = ...,
        *,
        lock_timeout: LockTimeout = ...,
    ) -> Select[tuple[T]]: ...

    def entity_set(
        self,
        entity: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
    ) -> Select[Any]:
        """Return a ``select(entity)`` that locks the rows which it returns.

        Narrow it with ``where()``, ``order_by()`` or ``limit()``, and execute it in this session.
        An ``aliased()`` of joined inheritance needs ``flat=True``.  See :func:`with_lock`.

        Example::

            orders = session.entity_set(Order, LockOptions.ForUpdate).where(Order.total > 100)
            for order in session.scalars(orders):
                order.total = 100

        :param lock_timeout: as for :meth:`get_entity`.  PostgreSQL and SQL Server apply it to each row
            that the statement waits for, MySQL to the whole statement; MariaDB applies whole seconds to
            each row, and a fraction of a second to the statement.  Do not execute such a statement in a plain Session,
            which has no lock_timeout.
        :raises LockNotSupported: at execution, if the statement cannot lock: DISTINCT, GROUP BY,
            ``joinedload()``, ``subqueryload()``, ``yield_per``; SkipLocked on SQLite.
        """
        lock, seconds = check_wait(check_lock(lock), lock_timeout)
        return locked_select(select(entity), lock, None, seconds)

    def _get_by_key(
        self,
        entity: type[T],
        ident: Any,
        key: RowKey,
        values: Identity,
        options: Sequence[ORMOption],
        lock: LockOptions,
        seconds: float | None,
    ) -> T | None:
        if key.primary:
            return self.get_entity(entity, ident, lock, lock_timeout=seconds, options=options)
        mapper = mapper_of(entity)
        root = root_of(mapper)
        # With joined inheritance, a first statement locks the header, so it waits for uncommitted
        # rows.
        spans_tables = len(mapper.tables) > 1
        selected = root if spans_tables and key.table is own_table(root) else mapper
        statement = select(selected.class_).where(
            *(column == value for column, value in zip(key.columns, values, strict=True))
        )
        if selected is mapper:
            statement = statement.options(*options)
        statement = locked_select(statement, lock, None, seconds)
        locked = locked_entity_of(statement)
        assert locked is not None
        rows = self._execute_locked(locked, statement, None, {}, document=(entity, ident))
        try:
            found: T | None = rows.scalars().unique().one_or_none()
        except MultipleResultsFound:
            raise LockMisuse(
                f"{document_label(entity, ident)}: several rows have this key, so the database does not "
                "have the unique constraint that the class declares; add it by a migration"
            ) from None
        if found is None or selected is mapper:
            return found
        identity = public_key(tuple(root.primary_key_from_instance(found)))
        return self.get_entity(entity, identity, lock, options=options)

    def _check_request(self, request: LockRequest) -> None:
        for condition in self._context.parts.conditions:
            condition.check_request(request)

    def _check_found(self, request: LockRequest, found: object) -> None:
        """Compare the row with the caller's version and check-out; add the document to an error."""
        mapper = request.mapper
        assert mapper is not None
        try:
            for condition in self._context.parts.conditions:
                condition.check_found(request, found)
        except DocLockError as error:
            ident = public_key(tuple(mapper.primary_key_from_instance(found)))
            database = database_name(self, {"mapper": mapper})
            lock = None if request.lock in _PLAIN else request.lock
            add_document(error, mapper.class_, ident, lock, database)
            raise


def check_block_lock(lock: LockOptions, name: str) -> None:
    """:raises ValueError: the lock locks nothing."""
    if base_of(check_lock(lock)) in (LockOptions.None_, LockOptions.NoLock):
        raise ValueError(f"{name}() needs a lock, and {lock} takes none")


def key_of(session: Session, instance: T) -> tuple[type[T], Any]:
    """Return the class of an object of this session, and its primary key as ``get_entity()`` takes it.

    :raises TypeError: not an object of a mapped class.
    :raises LockMisuse: it is not in this session, or has no row yet.
    """
    if isinstance(instance, type):
        raise TypeError(f"{instance.__name__} is a class: give the primary key of its row too")
    state = inspect(instance, raiseerr=False)
    if not isinstance(state, InstanceState):
        raise TypeError(
            f"lock a mapped class with a primary key, an object or a select, not {instance!r}"
        )
    name = state.class_.__name__
    if state.session is not session:
        raise LockMisuse(
            f"the {name} is not in this session: load it here, or lock it by its primary key"
        )
    if state.identity is None:
        raise LockMisuse(f"the {name} has no row yet: flush it first")
    return state.class_, public_key(tuple(state.identity))


def in_given_order(mapper: Mapper[Any], found: Sequence[T], idents: Iterable[Any]) -> list[T]:
    """Return the objects in the order of these keys.

    Objects whose key equals one of these only in the database come last, in their own order.
    """
    by_key = {tuple(mapper.primary_key_from_instance(row)): row for row in found}
    given = (identity_of(mapper, ident) for ident in idents)
    ordered = [by_key.pop(identity) for identity in given if identity in by_key]
    return [*ordered, *by_key.values()]


def no_result(entity: type[Any], ident: Any) -> NoResultFound:
    """Return the error for a row that must exist."""
    return NoResultFound(f"there is no {entity.__name__} with the primary key {key_text(ident)}")
