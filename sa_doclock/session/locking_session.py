"""LockingSession: the public methods.

What each does with a lock is one :class:`LockRequest` and one call of :func:`acquire`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session, SessionTransactionOrigin
from sqlalchemy.orm.interfaces import ORMOption

from ..dialects.base import Read
from ..documents import identity_of, mapper_of
from ..errors import LockMisuse
from ..gate import DocumentGate, SessionQueue
from ..guard import GuardMode
from ..lock_info import DocumentKey
from ..locking import (
    LockContext,
    ManyByKey,
    NamedLock,
    OneByKey,
    Priority,
    WaitPolicy,
    acquire,
    bind_of_key,
    check_key,
    identities_of,
    load_parts,
    lock_of_key,
    read_many,
    read_one,
    reads_of,
    session_options,
    single_key,
)
from ..monitoring import Diagnosis
from ..options import LockOptions, LockTimeout, base_of, check_lock, check_wait
from ..statements import checked_options, locked_select
from ..transaction import LockRequest, SessionPipeline
from .execute import ExecutingSession

T = TypeVar("T")

_PLAIN: Final = frozenset({LockOptions.None_, LockOptions.NoLock})
_SKIPPING: Final = frozenset(
    {
        LockOptions.ForUpdate | LockOptions.SkipLocked,
        LockOptions.SharedRead | LockOptions.SkipLocked,
    }
)


class LockingSession(ExecutingSession):
    """A :class:`sqlalchemy.orm.Session` that locks documents.

    Made by ``sessionmaker(engine, class_=LockingSession)``.  Every method of Session is as
    it was; a statement made by :func:`with_lock` or :meth:`entity_set` is guarded when it
    is executed here.

    :param lock_timeout: seconds (or a timedelta) that every lock of this session may wait for
        another holder, where the call does not say itself; None as the server is configured.
    :param priority: ``"batch"`` for a job that must not delay anybody: it never stands in the
        queue for a lock, but tries without waiting, again and again with random pauses of up to
        0.5 s, until its lock_timeout is over (60 s where there is none).  Costs a savepoint for
        each try, except on SQLite.  On SQL Server it is also the one that a deadlock ends.
    :param lock_order: mapped classes in the order in which one transaction may lock their
        documents; classes that are not named may come anywhere.
    :param guard: what happens when a document declared by :func:`document` would be written
        without its ForUpdate lock: ``"raise"`` :class:`UnlockedWrite`, ``"warn"``, or
        ``"off"``.  It sees flushes, and INSERT, UPDATE and DELETE constructs that the session
        executes; not ``text()``, a writing CTE, statements of the session's connection, nor
        what triggers and ``ON DELETE`` do.
    :param guard_tracing: remember for each object of a declared document the line of the
        program that read it, and tell it in UnlockedWrite; costs time at every load.
    :param diagnose: a lock that is not granted tells who holds it: LockNotAvailable has its
        ``blockers``, asked of the server over a second connection, beside the pool.
    :param gate: where those of this process who want the same document queue before they take a
        connection; see :class:`DocumentGate`.
    :param pipeline: send in one round trip what need not be answered one by one: a lock with its
        BEGIN and, in get_document(), with the parts; the last flush with COMMIT.  PostgreSQL
        with psycopg 3; elsewhere the first use of the session raises LockNotSupported.
    :raises TypeError: ``lock_order`` names something that is not a mapped class;
        ``lock_timeout`` is no time; ``gate`` is no gate.
    :raises ValueError: ``lock_order`` names a hierarchy twice; no such ``guard`` or ``priority``;
        ``lock_timeout`` is negative or not finite; ``pipeline`` with ``twophase``.
    """

    def __init__(
        self,
        *args: Any,
        lock_timeout: LockTimeout = None,
        priority: Priority = "interactive",
        lock_order: Sequence[type[Any]] = (),
        guard: GuardMode = "raise",
        guard_tracing: bool = False,
        diagnose: bool = False,
        gate: DocumentGate | None = None,
        pipeline: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if pipeline and self.twophase:
            raise ValueError("pipeline=True and twophase=True exclude each other")
        options = session_options(priority, tuple(lock_order), guard, guard_tracing)
        if lock_timeout is not None:
            options = replace(options, wait=WaitPolicy(lock_timeout, priority))
        context = LockContext(self, options.ranks, low_priority=options.wait.batch)
        context.options = options
        self._context = context
        if kwargs.get("binds"):
            context.binds = tuple(kwargs["binds"].values())
        if gate is not None:
            context.queue = queue = SessionQueue(
                gate, context.session, context.connections, context.ledger
            )
            # Of this session alone, since SQLAlchemy calls get_bind() for every statement.
            vars(self)["get_bind"] = partial(_get_bind_at_gate, context.session, queue)
        if pipeline:
            context.pipeline = SessionPipeline(context.refuse_failed)
            vars(self)["commit"] = partial(_commit_by_pipeline, context.session, context)
        if diagnose:
            context.diagnosis = Diagnosis(self, context.connections.all)

    @property
    def held_locks(self) -> Mapping[DocumentKey, LockOptions]:
        """The documents that this transaction holds: ``{(Order, (42,)): LockOptions.ForUpdate}``.

        Read-only.  Emptied by commit, rollback and close, and when the connection is lost.
        """
        context = self._context
        if context.connections.lost():
            context.lose_locks()
        return context.ledger.held

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
            NoWait, None as the session says, or else as the server is configured.  Rounded
            up to milliseconds.  It may be longer than the server's own limit: on MySQL, a
            wait that ``innodb_lock_wait_timeout`` has ended then goes to the end of the queue.
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
        context = self._context
        wait = context.options.wait
        if lock_timeout is None:
            lock, seconds = wait.without_timeout(lock)
        else:
            lock, seconds = wait.resolve(lock, lock_timeout)
        if lock in _SKIPPING:
            raise ValueError(
                "LockOptions.SkipLocked is for sets: of get_entity(), None would mean two things"
            )
        mapper = mapper_of(entity)
        identity = identity_of(mapper, ident)
        if options:
            options = checked_options(options)
        if lock in _PLAIN:
            context.refuse_failed()
            return read_one(self, mapper, identity, lock, options)
        request = LockRequest(
            entity, ident, lock, seconds, mapper, (identity,), options, {"mapper": mapper}
        )
        return acquire(OneByKey(context, request))

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

    def get_entities(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> list[T]:
        """Return the entities with these primary keys, locked in ascending key order.

        Sessions that lock the same documents in this way do not deadlock, whatever the order
        of their arguments.  One statement locks them all, up to 32,000 keys (MySQL: 8,000; SQL
        Server: 2,000; MariaDB: 900; half of that and less for composite keys); more are locked
        in several, in the same order.

        :param idents: primary keys as for :meth:`get_entity`; each document comes once.
        :param lock_timeout: as for :meth:`get_entity`, for each statement; PostgreSQL and
            MariaDB apply it to each row.
        :returns: in ascending key order, without those that there are not, or that
            ``SkipLocked`` leaves out.  Between several statements, text keys are ordered as
            Python orders them.
        :raises TypeError: ``idents`` is not a collection.
        :raises ValueError: as :meth:`get_entity`; or keys that have no order among them.

        What else is raised, and what follows a failure: see :meth:`get_entity`.
        """
        context = self._context
        lock, seconds = context.options.wait.resolve(lock, lock_timeout)
        mapper = mapper_of(entity)
        identities = identities_of(mapper, idents)
        if options:
            options = checked_options(options)
        if lock in _PLAIN:
            context.refuse_failed()
            with self.no_autoflush:
                return read_many(self, mapper, identities, lock, options)
        request = LockRequest(
            entity,
            single_key(identities),
            lock,
            seconds,
            mapper,
            identities,
            options,
            {"mapper": mapper},
        )
        return acquire(ManyByKey(context, request))

    def get_document(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> T | None:
        """:meth:`get_entity`, and all parts of the document loaded with it.

        The parts are those that :func:`document` declares, or the one-to-many collections of
        an entity that is not declared, except those mapped as ``write_only`` or ``dynamic``.
        Each kind of part takes one statement, run after the lock is granted, so that under
        ForUpdate, SharedRead and SnapshotRead header and parts belong together.  Without a
        lock, or with NoLock, they may not.

        What is loaded already and not stale is not loaded again: pending changes of a
        document that is held stay.
        """

        def reads() -> Iterable[Read]:
            mapper = mapper_of(entity)
            return reads_of(mapper, identity_of(mapper, ident), lock)

        with self._context.reading_ahead(reads):
            found = self.get_entity(entity, ident, lock, lock_timeout=lock_timeout, options=options)
            if found is not None:
                self._load_parts([found], lock)
        return found

    def get_documents(
        self,
        entity: type[T],
        idents: Iterable[Any],
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> list[T]:
        """:meth:`get_entities`, and all parts of the documents; see :meth:`get_document`."""
        found = self.get_entities(entity, idents, lock, lock_timeout=lock_timeout, options=options)
        self._load_parts(found, lock)
        return found

    def _load_parts(self, found: Sequence[Any], lock: LockOptions) -> None:
        with self.no_autoflush:
            load_parts(self, found, lock)

    def entity_set(
        self,
        entity: Any,
        lock: LockOptions = LockOptions.None_,
        *,
        lock_timeout: LockTimeout = None,
    ) -> Select[Any]:
        """Return ``select(entity)``, which locks all rows it returns when it is executed.

        Narrow it with ``where()``, ``order_by()``, ``limit()`` and execute it in this session.
        An ``aliased()`` of joined inheritance needs ``flat=True``.  See :func:`with_lock`,
        which also keeps the static type of a select: no annotation here is right for both
        SQLAlchemy 2.0 (``Select[tuple[Order]]``) and 2.1 (``Select[Order]``).

        :param lock_timeout: as for :meth:`get_entity`.  MySQL, and MariaDB for a fraction of a
            second, apply it to the whole statement; PostgreSQL, SQL Server and otherwise MariaDB
            to each row that it has to wait for.  A plain Session, which has no lock_timeout,
            must not execute the statement then.
        :raises LockNotSupported: at execution, for what cannot be locked: DISTINCT, GROUP BY,
            ``joinedload()``, ``subqueryload()``, ``yield_per``; SkipLocked on SQLite.
        """
        lock, seconds = check_wait(check_lock(lock), lock_timeout)
        return locked_select(select(entity), lock, None, seconds)

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
        ends = opens or (writes and self._context.ledger.empty and self._ends_here())
        try:
            document = self.get_one_entity(
                entity, ident, lock, lock_timeout=lock_timeout, options=options
            )
        except BaseException:
            if opens:
                self._context.roll_back_quietly()
            raise
        try:
            yield document
            if ends and writes:
                self.save_changes()
            elif ends:
                self.release_locks()
        except BaseException:
            if ends:
                self._context.roll_back_quietly()
            raise

    def lock_key(
        self,
        key: str,
        *,
        lock_timeout: LockTimeout = None,
        shared: bool = False,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Lock a name in place of a row: nobody else has this key until the transaction ends.

        What is read afterwards is not older than the lock; objects that the session has loaded
        before stay as they are, so take the key first.  A key that is held already is not asked
        for again.  Pending changes are not flushed before.

        :param key: any text that is not empty, such as :func:`doclock_key` makes.  Those who
            use the same database and the same key exclude each other.
        :param lock_timeout: seconds (or a timedelta) to queue behind another holder, rounded up
            to milliseconds; 0 fails at once.  None: as the session says, or else as the server
            is configured, which on MySQL and MariaDB is ``innodb_lock_wait_timeout``.
        :param shared: beside others that are shared.  Exclusive all the same on MySQL, MariaDB
            and SQLite, which have no such named lock.
        :param bind_arguments: as for ``Session.execute()``, in a session with several databases.
        :raises LockNotAvailable: another transaction held the key past ``lock_timeout``.
        :raises DeadlockDetected: run the whole transaction again.
        :raises SnapshotConflict: the same; on SQLite, after an earlier read.
        :raises WrongIsolation: what is read in the open transaction can be older than the lock.
        :raises LockUpgradeRefused: held shared in this transaction, and now asked for alone.
        :raises LockNotSupported: this database or connection cannot hold a key.
        :raises LockMisuse: the session has several databases, and none is meant.
        :raises TypeError: a key that is no str, a ``shared`` that is no bool.
        :raises ValueError: an empty key, or one with a NUL.

        On SQLite it is the write lock on the whole file.  A rollback to a savepoint gives up
        what was taken in it on PostgreSQL alone; elsewhere it stays to the end.  After a
        failure: see :meth:`get_entity`.
        """
        context = self._context
        lock, seconds = context.options.wait.resolve(lock_of_key(shared=shared), lock_timeout)
        check_key(key)
        arguments = dict(bind_arguments or {})
        context.refuse_failed()
        bind = bind_of_key(self, arguments)
        if not self.is_active:
            self.connection(bind_arguments=arguments)  # raises, as after a failed flush
        request = LockRequest(None, key, lock, seconds, bind_arguments=arguments)
        acquire(NamedLock(context, request, bind))

    def save_changes(self) -> None:
        """Flush; then commit, unless the caller opened the transaction or a savepoint.

        "Opened" is ``session.begin()``: a transaction that began by itself, with a lock or an
        earlier read, is committed, and its locks are released.

        :raises LockFailed: a deadlock or conflict that the server found only now.
        """
        context = self._context
        if context.failed is not None:
            context.failed.refuse()
        if not self._ends_here():
            self.flush()
            return
        with context.committing():
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

    def on_commit(self, function: Callable[[], object]) -> None:
        """Call the function when this transaction has been committed and its locks are gone.

        Functions are called in the order of this method's calls, after the outermost commit;
        a rollback drops them, one to a savepoint those since the savepoint.  Where no transaction
        has begun yet, the next commit is meant.  What they need of a database they read in a
        session of their own: this one is still inside of its commit.

        When one fails, the others are called all the same; then the first error comes out of
        the commit, which is *done*: what is committed stays committed.  Further errors are
        logged by the logger ``sa_doclock``.

        Not promised: that it is called at all, should the process die between the commit and
        the call; and of a session that has joined the transaction of a Connection, the
        outermost commit is the session's own.

        :raises TypeError: not a function.
        """
        self._context.on_commit.add(function)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """``with session.unguarded():`` declared documents are written without their lock.

        For migrations, imports and tests.  Pending changes are flushed at the start, guarded,
        and at the end, unguarded, so that the guard looks at what is written outside alone.
        """
        self.flush()
        with self._context.guard.disabled():
            yield
            self.flush()

    def _ends_here(self) -> bool:
        """Return whether there is no transaction, or one that began by itself."""
        if self.in_nested_transaction():
            return False
        transaction = self.get_transaction()
        return transaction is None or transaction.origin is SessionTransactionOrigin.AUTOBEGIN


# Functions, not bound methods: these would keep the session alive until a garbage collection.


def _get_bind_at_gate(
    session: Callable[[], Session], queue: SessionQueue, *args: Any, **kwargs: Any
) -> Any:
    """Return what the class's own get_bind() returns, unless the gate refuses it."""
    of_session = session()
    bind = type(of_session).get_bind(of_session, *args, **kwargs)
    queue.refuse_second_session(bind)
    return bind


def _commit_by_pipeline(session: Callable[[], Session], context: LockContext) -> None:
    """Commit as the class does, the last flush and COMMIT in one round trip.

    Not a method of ours around commit(): SQLAlchemy's warnings of a commit would be located
    there, and not at the program's line.
    """
    of_session = session()
    with context.committing():
        type(of_session).commit(of_session)
