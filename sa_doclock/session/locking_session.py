"""LockingSession: its options, and the methods beside those of the core, of blocks and of check-outs."""

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
from ..features import OF_DOCUMENTS_ALONE, PartOptions, install_parts, is_routed
from ..features.named_locks import NamedLockMethods
from ..options import BATCH_WAIT, GuardMode, LockOptions, LockTimeout, Priority, check_priority
from .base_classes import refuse_methods_behind
from .checkout_methods import CheckoutMethods

if TYPE_CHECKING:
    from ..features.gate import DocumentGate

T = TypeVar("T")


class LockingSession(CheckoutMethods, NamedLockMethods):
    """A :class:`sqlalchemy.orm.Session` that locks documents.

    Made by ``sessionmaker(engine, class_=LockingSession)``.  Every method of Session is as
    it was; a statement made by :func:`with_lock` or :meth:`entity_set` is guarded when it
    is executed here.

    Beside another Session class among the bases of a class, name LockingSession last.

    :param lock_timeout: seconds (or a timedelta) that every lock of this session may wait for
        another holder, where the call does not say itself; None as the server is configured.
    :param priority: ``"batch"`` for a job that must not delay anybody: it never stands in the
        queue for a lock, but tries without waiting, again and again with random pauses of up to
        0.5 s, until its lock_timeout is over (60 s where there is none).  Costs a savepoint for
        each try, except on SQLite.  On SQL Server it is also the one that a deadlock ends.
    :param lock_order: mapped classes in the order in which one transaction may lock their
        documents; classes that are not named may come anywhere.
    :param guard: the reaction when a document declared by :func:`document` would be written
        without its ForUpdate lock: ``"raise"`` :class:`UnlockedWrite`, ``"warn"`` once for each
        line of the program (with a log record and an event ``unlocked_write`` for each document),
        or ``"off"``.  It sees flushes, and INSERT, UPDATE and DELETE constructs that the session
        executes; not ``text()``, a writing CTE, statements of the session's connection, nor
        the writes of triggers and ``ON DELETE``.
    :param guard_tracing: record each statement, and the line of the program that has run it, and name
        both in an UnlockedWrite for a row that the statement has read.  Costs time at every statement.
    :param diagnose: find out who holds a lock that is not granted: LockNotAvailable has it in
        ``blockers``, asked of the server over a second connection, outside of the pool.
    :param gate: a queue within this process: callers that want the same document wait in it before
        they take a connection; see :class:`DocumentGate`.
    :param pipeline: send several statements in one round trip: a lock with its BEGIN and, in
        get_document(), with the SELECTs of the parts; the last flush with COMMIT.  PostgreSQL
        with psycopg 3; elsewhere the first use of the session raises LockNotSupported.
    :param adopt_for_update: a select with SQLAlchemy's own ``with_for_update()``, also by Query,
        ``get()`` and ``refresh()``, is a lock of this session: ``held_locks`` has the headers
        whose objects or whole keys it returns, the guard knows them, its errors are typed, and it locks on
        SQLite and SQL Server too, also where it selects columns or tables alone.  One within a statement (CTE, subquery,
        EXISTS) locks too, and is LockNotSupported on SQL Server.  Headers that
        the session had read before take the values of the locked rows, and their parts load
        again; the pending change of a column that another has changed meanwhile raises
        UnsavedChanges, and other pending changes stay.
    :param hold_limit: seconds (or a timedelta) that a transaction may hold its locks, from the
        first one on; None: any time.  The server ends a transaction that sits idle for longer
        (PostgreSQL; MySQL and MariaDB, rounded up to whole seconds), so that a program that
        hangs or is stopped loses its locks.  On every database the clock of the client is looked
        at when the session is used next, by a statement, a flush or the commit: past the limit it
        rolls back and raises :class:`LockLost`, and nothing is saved.  On SQLite and SQL Server
        there is this clock alone: a program that never uses its session again keeps the lock.
        Not for SnapshotRead; of a Connection that was lent, the clock alone.
    :param warn_held_after: seconds (or a timedelta) after which the logger ``sa_doclock`` warns of
        a lock that is still held, with its document and the line of the program that took it,
        and once more, with the whole time, when it is released.  None: no warning.
    :param checkouts: the table of check-outs, made by :func:`checkout_table`.  Each ForUpdate lock
        of a class declared with ``checkout=True``, also one by ``with_for_update()``, then reads
        who has the document checked out, by one more statement, and raises CheckedOut where
        another owner has it.  None: check-outs are not read.
    :param commit_outcome: look up a COMMIT whose connection is lost before its answer comes.  Before
        COMMIT the session asks PostgreSQL 13 or later for the id of a transaction that has written
        (one round trip), and after the loss for the outcome, over a connection of its own.  Committed:
        commit() returns, and the functions of :meth:`on_commit` run.  Not committed: LockLost, with
        ``retryable``.  Still in progress: it waits as long as ``lock_timeout``, or 10 s.
        Where the server cannot tell, and on every other database: CommitUnknown.
    :raises TypeError: ``lock_order`` names something that is not a mapped class;
        ``lock_timeout``, ``hold_limit`` or ``warn_held_after`` is not a time; ``gate`` is not a
        DocumentGate; ``checkouts`` is not a table of :func:`checkout_table`.
    :raises ValueError: ``lock_order`` names a hierarchy twice; an unknown ``guard`` or ``priority``;
        ``lock_timeout``, ``hold_limit`` or ``warn_held_after`` is negative or not finite, or
        ``hold_limit`` is 0; ``pipeline`` or ``commit_outcome`` with ``twophase``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a base class that would go past this one.  :raises LockMisuse: it would."""
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
        )
        for usual in OF_DOCUMENTS_ALONE:  # one object for most sessions
            if usual == self._part_options:
                self._part_options = usual
        super().__init__(*args, options=options, **kwargs)
        if self._part_options not in OF_DOCUMENTS_ALONE or is_routed(self):
            _ = self._context  # made now, so that wrong options are refused here

    def _make_context(self) -> LockContext:
        """Make the context of this session, and install its parts.

        :raises TypeError, ValueError: the options are wrong, as the class says.
        """
        context = LockContext(self, self._options)
        install_parts(self, context, self._part_options)
        if context.parts.around_get_bind:
            # Of this session alone, since SQLAlchemy calls get_bind() for every statement.
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

        Its row is locked in either case, as by :meth:`get_entity`.  Of several callers at once one
        inserts the row; the others wait for the end of its transaction, and get that row, or
        insert it where it was rolled back.  An INSERT that is refused is undone by its savepoint, so
        that the transaction stays usable.

        Where the row is not there, pending changes are flushed before the savepoint.  The new row
        counts when the transaction is committed.

        The parameters and errors that are not listed here are those of :meth:`get_entity`.

        Example::

            counter, created = session.get_or_create_entity(Counter, "invoices", defaults={"value": 0})
            counter.value += 1

        :param ident: the primary key; or a mapping of the attributes of exactly one unique constraint
            or unique index that the class declares: ``{"provider": "x", "event_id": "e1"}``.  Partial
            and functional indexes and deferrable constraints do not count.
        :param lock: ForUpdate, with NoKey or NoWait.
        :param defaults: where the row is not there: the arguments of the class beside those of its
            key; or a function without arguments that returns an object, which may have
            parts.  The function may be called twice, if a row comes and goes meanwhile.
        :param lock_timeout: as for :meth:`get_entity`, for all waits together.  The INSERT itself
            waits for others on PostgreSQL and SQL Server, for 1 ms at least.  On MySQL and MariaDB
            it waits for nobody who inserts by this method; behind another's INSERT of a unique key
            the server's ``innodb_lock_wait_timeout`` counts.
        :raises sqlalchemy.exc.IntegrityError: another constraint refuses the row.
        :raises ValueError: a read lock or SkipLocked; ``defaults`` has another key; a mapping that names
            no key, whose text lists the keys; a unique key with NULL, which several rows may have.
        :raises LockMisuse: several rows have the key: the database does not have the constraint.
        :raises TypeError: ``defaults`` is neither a mapping nor a function, or its function returns
            no object of the class.
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
        """Call the function when this transaction has been committed and its locks are gone.

        Functions are called in the order of this method's calls, after the outermost commit;
        a rollback drops them, one to a savepoint those since the savepoint.  Where no transaction
        has begun yet, the next commit is meant.  Functions that need a database read it in a
        session of their own: this one is still inside of its commit.

        When one fails, the others are called all the same, also after a KeyboardInterrupt, a
        SystemExit or a cancellation.  Then the first of these comes out of the commit, or else
        the first error.  The commit is *done*: its changes stay committed.  All other
        errors are logged by the logger ``sa_doclock``.

        Where an interruption, or the error of a listener, comes between the commit and the call,
        they are called at the next use of the session, or when it is closed.

        Not promised: that it is called at all, should the process die between the commit and
        the call; and of a session that has joined the transaction of a Connection, the
        outermost commit is the session's own.

        Example::

            order = session.get_one_entity(Order, 42, LockOptions.ForUpdate)
            order.total += 1
            session.on_commit(lambda: print("order 42 was saved"))
            session.commit()

        :raises TypeError: not a function.
        """
        from ..features.on_commit import AfterCommit  # noqa: PLC0415  # of a session that uses it

        context = self._context
        context.end_if_over()  # with the functions that belong to it
        part = context.parts.find(AfterCommit)
        if part is None:
            part = AfterCommit(context)
            context.parts.add(part)
        part.add(function)

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Return a block in which declared documents may be written without their lock.

        ``with session.unguarded():``, ``async with`` under asyncio, for migrations, imports and tests.
        Pending changes are flushed at the start, guarded, and at the end, unguarded, so that the guard
        checks only writes outside of the block.

        The block asks neither for locks nor for check-outs: it writes past another owner's check-out.
        Only ``atomic_update()`` asks for the check-out there too.  Statements and bulk methods in the
        block raise no version.

        Example::

            with session.unguarded():
                session.execute(update(Order).values(total=0))
        """
        self.flush()
        guard = self._context.parts.guard
        with nullcontext() if guard is None else guard.around_unguarded():
            yield
            self.flush()


# Functions, not bound methods: these would keep the session alive until a garbage collection.


def _get_bind_of_class(session: Callable[[], Session], *args: Any, **kwargs: Any) -> Any:
    of_session = session()
    return type(of_session).get_bind(of_session, *args, **kwargs)


def _commit_in_blocks(session: Callable[[], Session], context: LockContext) -> None:
    """Commit as the class does, in the blocks of the parts: they end where a listener refuses it.

    Not a method of ours around commit(): SQLAlchemy's warnings of a commit would be located
    there, and not at the program's line.
    """
    of_session = session()
    with context.transaction.saving():
        type(of_session).commit(of_session)
