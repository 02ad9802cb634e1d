"""LockingSession: the only orchestration.

get_entity() travels: check -> ledger (upgrade? held already?) -> refuse unsaved changes ->
the transaction is made fit -> one SELECT -> ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Result, Select, inspect, select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import (
    Mapper,
    SessionTransactionOrigin,
)
from sqlalchemy.orm.interfaces import ORMOption
from sqlalchemy.sql import Executable

from .aftermath import name_document
from .books import BookkeepingSession
from .by_key import lock_and_read, read, read_again
from .dialects import product_of
from .documents import DocumentKey, document_key, identity_of, lockable, mapper_of, root_of
from .errors import DocLockError, LockMisuse
from .freshness import refuse_unsaved
from .options import LockOptions, LockTimeout, base_of, check_lock, check_wait
from .sets import execute_locked, refuse_streaming
from .shapes import checked_options, refuse_unlockable_options
from .statements import (
    LOCK_OPTION,
    LockedEntity,
    locked_by,
    refuse_lock_within,
    with_lock,
)

T = TypeVar("T")


class LockingSession(BookkeepingSession):
    """A :class:`sqlalchemy.orm.Session` that locks documents.

    Made by ``sessionmaker(engine, class_=LockingSession)``.  Every method of Session is as
    it was; a statement made by :func:`with_lock` or :meth:`entity_set` is guarded when it
    is executed here.
    """

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """The documents that this transaction holds: ``{(Order, (42,)): LockOptions.ForUpdate}``.

        Read-only.  Emptied by commit, rollback and close.
        """
        return self._books.ledger.held

    def get_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T | None:
        """Return the entity with this primary key, its row locked until the transaction ends.

        The row is read after the lock is granted, so no attribute is older than the lock;
        collections and details that the session has loaded are read again at their next use.
        Pending changes are not flushed before.

        :param ident: the primary key: a scalar, a tuple in mapper order, or a dict.
        :param lock: what to take; ``LockOptions.None_`` and ``NoLock`` are plain reads.
        :param lock_timeout: seconds (or a timedelta) to queue behind another holder; 0 is
            NoWait, None as the server is configured.  Rounded up: to milliseconds, on
            MariaDB to whole seconds.  On MySQL the server's own limit,
            ``innodb_lock_wait_timeout``, still applies where it is shorter.
        :param options: loader options, as for ``Session.get()``.
        :returns: None when there is no such row; nothing is locked then, and another
            transaction may insert it.
        :raises LockNotAvailable: another transaction held the row past ``lock_timeout``.
        :raises DeadlockDetected: run the whole transaction again.
        :raises UnsavedChanges: the entity or its parts have pending changes in this session.
        :raises WrongIsolation: the open transaction cannot protect a document.
        :raises LockUpgradeRefused: held by a read lock in this transaction already.
        :raises LockNotSupported: this database, table or connection cannot give that lock.
        :raises ValueError: contradictory arguments, or a key of the wrong shape.

        After a failure: where this call had opened the transaction, it is rolled back.
        Otherwise the transaction refuses everything until ``rollback()``.
        """
        lock, seconds = check_wait(check_lock(lock), lock_timeout)
        if LockOptions.SkipLocked in lock:
            raise ValueError(
                "LockOptions.SkipLocked is for sets: of get_entity(), None would mean two things"
            )
        mapper = mapper_of(entity)
        identity = identity_of(mapper, ident)
        options = checked_options(options)
        books = self._books
        books.aftermath.refuse()
        try:
            if base_of(lock) in (LockOptions.None_, LockOptions.NoLock):
                return read(self, mapper, identity, lock, options)
            if books.ledger.covers(document_key(mapper, identity), lock):
                return read_again(self, mapper, identity, options)
            lockable(mapper)
            refuse_unlockable_options(options)
            refuse_unsaved(self, root_of(mapper), (identity,))
            with books.aftermath.of_lock(entity, ident, lock, seconds):
                return lock_and_read(self, books, mapper, identity, lock, seconds, options)
        except DocLockError as error:
            name_document(error, entity, ident, lock, product_of(self.get_bind(mapper).dialect))
            raise

    def get_one_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T:
        """The same as :meth:`get_entity`, for a row that must be there.

        :raises sqlalchemy.exc.NoResultFound: there is no such row.
        """
        found = self.get_entity(entity, ident, lock, lock_timeout=lock_timeout, options=options)
        if found is None:
            raise NoResultFound(f"there is no {entity.__name__} with the primary key {ident!r}")
        return found

    def entity_set(self, entity: Any, lock: LockOptions = LockOptions.None_) -> Select[Any]:
        """Return ``select(entity)``, which locks all rows it returns when it is executed.

        Narrow it with ``where()``, ``order_by()``, ``limit()`` and execute it in this session.
        An ``aliased()`` of joined inheritance needs ``flat=True``.  See :func:`with_lock`,
        which also keeps the static type of a select: no annotation here is right for both
        SQLAlchemy 2.0 (``Select[tuple[Order]]``) and 2.1 (``Select[Order]``).

        :raises LockNotSupported: at execution, for what cannot be locked: DISTINCT, GROUP BY,
            ``joinedload()``, ``subqueryload()``, ``yield_per``; SkipLocked on SQLite.
        """
        return with_lock(select(entity), lock)

    @contextmanager
    def locked(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> Iterator[T]:
        """``with session.locked(Order, 42) as order:`` locks, and ends what it has begun.

        At the end of the block: :meth:`save_changes` after ForUpdate,
        :meth:`release_locks` after a read lock; rollback on an exception, which comes out.
        A block inside of another, or in a transaction that holds locks, that was opened by
        ``begin()``, or that has a savepoint open, leaves the transaction alone; so does a
        read lock in a transaction that had begun by itself before.

        :raises sqlalchemy.exc.NoResultFound: there is no such row.
        :raises ValueError: a lock that locks nothing.
        """
        if base_of(check_lock(lock)) in (LockOptions.None_, LockOptions.NoLock):
            raise ValueError(f"locked() needs a lock, and {lock} is none")
        opens = not self.in_transaction()
        writes = base_of(lock) is LockOptions.ForUpdate
        # A transaction that an earlier read has begun is committed, as by save_changes().  It
        # is not rolled back after a read lock: it may hold changes, which are not ours to lose.
        ends = opens or (writes and not self._books.ledger.held and self._ends_here())
        try:
            document = self.get_one_entity(
                entity, ident, lock, lock_timeout=lock_timeout, options=options
            )
        except BaseException:
            if opens:
                self._books.aftermath.roll_back()
            raise
        try:
            yield document
            if ends and writes:
                self.save_changes()
            elif ends:
                self.release_locks()
        except BaseException:
            if ends:
                self._books.aftermath.roll_back()
            raise

    def save_changes(self) -> None:
        """Flush; then commit, unless the caller opened the transaction or a savepoint.

        "Opened" is ``session.begin()``: a transaction that began by itself, with a lock or an
        earlier read, is committed, and its locks are released.

        :raises LockFailed: a deadlock or conflict that the server found only now.
        """
        self._books.aftermath.refuse()
        self.flush()
        if self.in_transaction() and self._ends_here():
            self.commit()

    def release_locks(self) -> None:
        """Roll back, so that every lock is released; pending changes are lost with it.

        Does nothing where there is no transaction.

        :raises LockMisuse: the caller opened the transaction by ``begin()``, or a savepoint:
            it is the caller's to end.
        """
        if not self._ends_here():
            raise LockMisuse(
                "release_locks() would roll back a transaction that begin() or begin_nested() has "
                "opened: leave that block, or call rollback()"
            )
        if self.in_transaction():
            self.rollback()

    if not TYPE_CHECKING:
        # The signatures are Session's, with all their overloads.  Not a do_orm_execute
        # listener, which every statement and every lazy load would pay for.

        def execute(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.execute()``."""
            locked = self._locked_by(statement)
            if locked is None:
                return super().execute(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs)

        def scalars(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalars()``."""
            locked = self._locked_by(statement)
            if locked is None:
                return super().scalars(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs).scalars()

        def scalar(self, statement: Any, params: Any = None, **kwargs: Any) -> Any:
            """See ``Session.scalar()``."""
            locked = self._locked_by(statement)
            if locked is None:
                return super().scalar(statement, params, **kwargs)
            return self._execute_locked(locked, statement, params, **kwargs).scalar()

    def _locked_by(self, statement: Executable) -> LockedEntity | None:
        if not isinstance(statement, Executable):
            return None  # Session says better what is wrong with it
        if statement.is_dml:
            self._books.refuse_write_in_snapshot()
        found = locked_by(statement)
        if not isinstance(statement, Select):
            refuse_lock_within(statement)
        return found

    def _execute_locked(
        self,
        locked: LockedEntity,
        statement: Select[Any],
        params: Any = None,
        *,
        execution_options: Mapping[str, Any] = MappingProxyType({}),
        bind_arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Result[Any]:
        # make_stale() does what populate_existing does in a plain Session, and does not
        # overwrite pending changes elsewhere.
        options = {**execution_options, "populate_existing": False, LOCK_OPTION: None}
        arguments = dict(bind_arguments or {})
        run = partial(
            super().execute,
            params=params,
            execution_options=options,
            bind_arguments=arguments,
            **kwargs,
        )
        mapper: Mapper[Any] = inspect(locked.entity).mapper
        self._books.aftermath.refuse()
        try:
            refuse_streaming({**statement.get_execution_options(), **execution_options})
            failed_lock = self._books.aftermath.of_lock(mapper.class_, None, locked.lock, None)
            with failed_lock, self.no_autoflush:
                return execute_locked(self, self._books, run, statement, arguments, locked)
        except DocLockError as error:
            bind = self.get_bind(mapper)
            name_document(error, mapper.class_, None, locked.lock, product_of(bind.dialect))
            raise

    def _ends_here(self) -> bool:
        """There is no transaction, or one that began by itself."""
        if self.in_nested_transaction():
            return False
        transaction = self.get_transaction()
        return transaction is None or transaction.origin is SessionTransactionOrigin.AUTOBEGIN
