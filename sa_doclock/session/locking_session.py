"""LockingSession: its options, and the methods that no base class has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Table
from sqlalchemy.orm import Session
from sqlalchemy.orm.interfaces import ORMOption

from ..core.documents import key_and_values, mapper_of
from ..core.session_options import SessionOptions, session_options
from ..core.transaction import LockContext
from ..features import OF_DOCUMENTS_ALONE, PartOptions, install_parts
from ..features.named_locks import NamedLockMethods
from ..options import BATCH_WAIT, GuardMode, LockOptions, LockTimeout, Priority, check_priority
from .base_classes import refuse_methods_behind
from .checkout_methods import CheckoutMethods

if TYPE_CHECKING:
    from ..features.gate import DocumentGate

T = TypeVar("T")


class LockingSession(CheckoutMethods, NamedLockMethods):
    """A :class:`sqlalchemy.orm.Session` that locks documents.

    Make it with ``sessionmaker(engine, class_=LockingSession)``.  The methods of Session work as
    before.  A statement made by :func:`with_lock` or :meth:`entity_set` locks its rows when this
    session executes it.

    In a class with other Session classes among its bases, name LockingSession last.

    :param lock_timeout: seconds (or a timedelta) that a lock of this session may wait for another
        holder, unless the call gives its own; None: as the server is configured.
    :param priority: ``"batch"`` for a job that must not delay others.  It never queues for a lock: it
        tries without waiting, with random pauses of up to 0.5 s, until its lock_timeout is over (60 s
        if there is none).  Each try costs a savepoint, except on SQLite.  On SQL Server a deadlock
        ends this session rather than the other.
    :param lock_order: mapped classes, in the order in which a transaction may lock their documents.
        Classes that are not listed may be locked at any point.
    :param guard: the reaction to a write of a document declared by :func:`document` without its
        ForUpdate lock: ``"raise"`` :class:`UnlockedWrite`; ``"warn"`` once for each line of the program
        (with a log record and an event ``unlocked_write`` for each document); or ``"off"``.  The guard
        sees flushes, and INSERT, UPDATE and DELETE constructs that the session executes.  It does not
        see ``text()``, a writing CTE, statements of the session's connection, triggers and ``ON DELETE``.
    :param guard_tracing: record each statement with the line of the program that ran it.  An
        UnlockedWrite then names the statement that read the row.  Costs time at every statement.
    :param diagnose: when a lock is not granted, ask the server who holds it, over a second connection
        outside of the pool.  LockNotAvailable has the answer in ``blockers``.
    :param gate: a queue within this process.  Callers that want the same document wait in it before
        they take a connection; see :class:`DocumentGate`.
    :param pipeline: send several statements in one round trip: a lock with its BEGIN and, in
        get_document(), with the SELECTs of the parts; the last flush with COMMIT.  PostgreSQL
        with psycopg 3; elsewhere the first use of the session raises LockNotSupported.
    :param adopt_for_update: a select with SQLAlchemy's own ``with_for_update()``, also by Query,
        ``get()`` and ``refresh()``, takes a lock of this session.  ``held_locks`` has each header whose
        object or whole key it returns; the guard knows the lock, and its errors are typed.  It also
        locks on SQLite and SQL Server, and if it selects columns or tables alone.  A lock within a CTE,
        a subquery or EXISTS counts too; on SQL Server it is LockNotSupported.  Headers that the session
        had read before take the values of the locked rows, and their parts load again.  A pending
        change of a column that somebody else has changed raises UnsavedChanges; others stay.
    :param hold_limit: seconds (or a timedelta) that a transaction may hold its locks, from the first
        one on; None: no limit.  PostgreSQL, and MySQL and MariaDB in whole seconds, end a transaction
        that is idle for longer, so a program that hangs or is stopped loses its locks.  On every
        database the next statement, flush or commit of the session checks the client's clock: past the
        limit it rolls back and raises :class:`LockLost`.  On SQLite and SQL Server, and on a Connection
        that was lent, only this clock counts: a program that never uses its session again keeps the
        lock.  SnapshotRead has no limit.
    :param warn_held_after: seconds (or a timedelta) after which the logger ``sa_doclock`` warns of a
        lock that is still held, with its document and the line of the program that took it.  A second
        record has the whole time when the lock is released.  None: no warning.
    :param checkouts: the table of check-outs, made by :func:`checkout_table`.  Each ForUpdate lock
        of a class declared with ``checkout=True``, also one by ``with_for_update()``, then reads in one
        more statement who has the document checked out, and raises CheckedOut if it is another owner.
        None: check-outs are not read.
    :param commit_outcome: look up a COMMIT whose connection is lost before the answer arrives.  Before
        the COMMIT of a transaction that has written, the session asks PostgreSQL 13 or later for its id
        (one round trip).  After the loss it asks for the outcome over a new connection.  Committed:
        commit() returns, and the functions of :meth:`on_commit` run.  Not committed: LockLost, with
        ``retryable``.  Still in progress: it waits for ``lock_timeout``, or 10 s.  If the server cannot
        tell, and on every other database: CommitUnknown.
    :raises TypeError: ``lock_order`` names something other than a mapped class;
        ``lock_timeout``, ``hold_limit`` or ``warn_held_after`` is not a time; ``gate`` is not a
        DocumentGate; ``checkouts`` is not a table of :func:`checkout_table`.
    :raises ValueError: ``lock_order`` names a hierarchy twice; ``guard`` or ``priority`` is unknown;
        ``lock_timeout``, ``hold_limit`` or ``warn_held_after`` is negative or not finite, or
        ``hold_limit`` is 0; ``pipeline`` or ``commit_outcome`` is combined with ``twophase``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the order of the bases.  :raises LockMisuse: a base would bypass the locks."""
        super().__init_subclass__(**kwargs)
        refuse_methods_behind(cls, LockingSession)

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
        adopt_for_update: bool = True,
        hold_limit: LockTimeout = None,
        warn_held_after: LockTimeout = None,
        checkouts: Table | None = None,
        commit_outcome: bool = False,
        **kwargs: Any,
    ) -> None:
        options = session_options(tuple(lock_order))
        if priority != "interactive":
            check_priority(priority)
            lock_timeout = BATCH_WAIT if lock_timeout is None else lock_timeout
        if lock_timeout is not None:
            options = SessionOptions(options.ranks, lock_timeout)
        self._part_options = PartOptions(
            guard,
            guard_tracing,
            priority == "batch",
            gate,
            pipeline,
            diagnose,
            hold_limit,
            warn_held_after,
            checkouts,
            adopt_for_update,
            commit_outcome,
            type(self).get_bind is not Session.get_bind,
        )
        for usual in OF_DOCUMENTS_ALONE:  # most sessions share one object
            if usual == self._part_options:
                self._part_options = usual
        super().__init__(*args, options=options, **kwargs)
        if self._part_options not in OF_DOCUMENTS_ALONE:
            _ = self._context  # created now, to refuse wrong options

    def _make_context(self) -> LockContext:
        """Create this session's context, and install its parts.

        :raises TypeError, ValueError: an option is wrong.
        """
        context = LockContext(self, self._options)
        install_parts(self, context, self._part_options)
        if context.parts.around_get_bind:
            # On the instance: SQLAlchemy calls get_bind() for every statement of every session.
            get_bind: Callable[..., Any] = partial(_get_bind_of_class, context.session)
            for around_get_bind in context.parts.around_get_bind:
                get_bind = around_get_bind(get_bind)
            vars(self)["get_bind"] = get_bind
        if context.parts.pipeline is not None:
            vars(self)["commit"] = partial(_commit_in_blocks, context.session, context)
        return context

    def get_or_create_entity(
        self,
        entity: type[T],
        ident: Any,
        lock: LockOptions = LockOptions.ForUpdate,
        *,
        defaults: Mapping[str, Any] | Callable[[], T] | None = None,
        lock_timeout: LockTimeout = None,
        options: Sequence[ORMOption] = (),
    ) -> tuple[T, bool]:
        """Return the entity with this key, and whether this call has inserted it.

        Either way its row is locked, as by :meth:`get_entity`.  Of several concurrent callers one
        inserts the row.  The others wait for the end of its transaction; then they get the row, or
        insert it if the transaction was rolled back.  The INSERT runs in a savepoint, so the
        transaction stays usable if the database refuses it.

        If the row is missing, pending changes are flushed before the savepoint.  Other transactions
        see the new row after the commit.

        For the other parameters and errors see :meth:`get_entity`.

        Example::

            counter, created = session.get_or_create_entity(Counter, "invoices", defaults={"value": 0})
            counter.value += 1

        :param ident: the primary key; or a mapping of the attributes of one unique constraint or unique
            index that the class declares: ``{"provider": "x", "event_id": "e1"}``.  Partial and
            functional indexes and deferrable constraints are not accepted.
        :param lock: ForUpdate, with NoKey or NoWait.
        :param defaults: for a row that is missing: the arguments of the class without its key, or a
            function without arguments that returns an object, which may have parts.  The function may
            be called twice, if another transaction inserts and deletes the row meanwhile.
        :param lock_timeout: as for :meth:`get_entity`, for all waits together.  On PostgreSQL and SQL
            Server the INSERT itself may wait, for at least 1 ms.  On MySQL and MariaDB it does not wait
            for callers of this method; behind another INSERT of a unique key the server's
            ``innodb_lock_wait_timeout`` applies.
        :raises sqlalchemy.exc.IntegrityError: another constraint refuses the row.
        :raises ValueError: a read lock or SkipLocked; ``defaults`` has another key; the mapping names no
            unique key (the message lists them), or has NULL, which several rows may have.
        :raises LockMisuse: several rows have the key: the constraint is missing in the database.
        :raises TypeError: ``defaults`` is neither a mapping nor a function, or the function does not
            return an object of the class.
        """
        from ..features.creation import Creation, check_creation  # noqa: PLC0415  # at its first use

        lock, seconds = self._context.options.resolve(lock, lock_timeout)
        check_creation(lock, defaults)

        mapper = mapper_of(entity)
        key, values = key_and_values(mapper, ident)
        get = partial(self._get_by_key, entity, ident, key, values, options)
        creation = Creation(self, entity, ident, key, values, lock, seconds, defaults, get)
        if isinstance(defaults, Mapping):
            creation.check_own(mapper, defaults)
        return self._take_or_roll_back(creation.run, opens=not self.in_transaction())

    def on_commit(self, function: Callable[[], object]) -> None:
        """Call the function after this transaction has been committed and its locks are released.

        The functions run in the order in which they were registered, after the outermost commit.  A
        rollback drops them; a rollback to a savepoint drops those registered since.  If no transaction
        has begun yet, they wait for the next commit.  A function that reads the database needs a
        session of its own, because this one is still committing.

        If a function fails, the others still run, even after a KeyboardInterrupt, a SystemExit or a
        cancellation.  The commit then raises the first of these, or else the first error; the logger
        ``sa_doclock`` logs the others.  The changes stay committed.

        If an interruption or a failing listener comes between the commit and the calls, the functions
        run at the next use of the session, or when it is closed.

        Not promised: a process that dies between the commit and the call does not call the function.
        In a session that has joined the transaction of a Connection, the outermost commit is the
        session's own.

        Example::

            order = session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            order.total += 1
            session.on_commit(lambda: print("order 42 was saved"))
            session.commit()

        :raises TypeError: not a function.
        """
        from ..features.on_commit import AfterCommit  # noqa: PLC0415  # of a session that uses it

        context = self._context
        context.end_if_over()  # also drops its on_commit functions
        part = context.parts.find(AfterCommit)
        if part is None:
            part = AfterCommit(context)
            context.parts.add(part)
        part.add(function)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Return a block that may write declared documents without their lock.

        It is meant for migrations, imports and tests; under asyncio it is ``async with``.  The block
        flushes pending changes when it begins, with the guard, and when it ends, without.

        Within the block neither locks nor check-outs are checked, so it can write to a document that
        somebody else has checked out.  Only ``atomic_update()`` still checks the check-out.  Statements
        and bulk methods in the block do not raise the version.

        Example::

            with session.unguarded():
                session.execute(update(Order).values(total=0))
        """
        self.flush()
        guard = self._context.parts.guard
        with nullcontext() if guard is None else guard.around_unguarded():
            yield
            self.flush()


# Functions, because bound methods would keep the session alive until a garbage collection.


def _get_bind_of_class(session: Callable[[], Session], *args: Any, **kwargs: Any) -> Any:
    of_session = session()
    return type(of_session).get_bind(of_session, *args, **kwargs)


def _commit_in_blocks(session: Callable[[], Session], context: LockContext) -> None:
    """Commit as the class does, within the parts' blocks, which end even if a listener refuses.

    An override of commit() would give SQLAlchemy's warnings a location in this package.
    """
    of_session = session()
    with context.transaction.saving():
        type(of_session).commit(of_session)
