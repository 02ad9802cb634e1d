"""Tests that every dialect of sa_doclock must pass, for a dialect's author.

A test module of the author's has the line ::

    from sa_doclock.testing.dialect_suite import *

and a ``conftest.py`` the fixture ``engine``: an :class:`~sqlalchemy.Engine` on an empty database,
whose pool has room for ten connections.  The tests ask the strategy which locks it supports: those
must lock, and the others raise ``LockNotSupported``.  Two sessions run in two threads; the server
reports, by the strategy's ``monitoring``, that one waits for the other.

It needs pytest: the extra ``sa-doclock[testing]``.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, Final

import pytest
from sqlalchemy import Engine, ForeignKey, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from ..claims import claim_each
from ..core.documents import document
from ..dialects import check_support, may_wait, strategy_for
from ..dialects.base import Locked, LockStrategy
from ..errors import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockNotAvailable,
    LockNotSupported,
    LockUpgradeRefused,
    UnlockedWrite,
    WrongIsolation,
)
from ..options import LockOptions, base_of
from ..retry import run_transaction
from ..session import LockingSession
from ..tools.cli.workload import Plan, fresh_tables, run
from .waiting import wait_until_blocked

FOR_UPDATE: Final = LockOptions.ForUpdate
SHARED: Final = LockOptions.SharedRead
SNAPSHOT: Final = LockOptions.SnapshotRead
NO_WAIT: Final = LockOptions.NoWait
SKIP: Final = LockOptions.SkipLocked
LOCKS: Final = (
    *(FOR_UPDATE, FOR_UPDATE | NO_WAIT, FOR_UPDATE | SKIP, FOR_UPDATE | LockOptions.NoKey),
    *(SHARED, SHARED | NO_WAIT, SHARED | SKIP, SNAPSHOT),
)
PATIENCE: Final = 60.0
"""Seconds after which it is an error that a step has not ended."""

_RUN: Final = secrets.token_hex(3)  # keeps parallel runs on one database apart
_INNODB: Final = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


class Base(DeclarativeBase):
    """The base class of the tables of the suite."""


@document
class Order(Base):
    """A header; its total is the sum of its lines."""

    __tablename__ = f"doclock_suite_order_{_RUN}"
    __table_args__ = _INNODB

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(cascade="all, delete-orphan", order_by=lambda: Line.id)


class Line(Base):
    """A detail."""

    __tablename__ = f"doclock_suite_line_{_RUN}"
    __table_args__ = _INNODB

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    amount: Mapped[int]


class Actor:
    """A session in its own thread."""

    def __init__(self, engine: Engine) -> None:
        """Start the thread."""
        self.session = LockingSession(engine)
        self._thread = ThreadPoolExecutor(1)

    def starts(self, step: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Let the thread call ``step(session, *arguments, **options)``, and return at once."""
        return self._thread.submit(step, self.session, *arguments, **options)

    def does(self, step: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Let the thread call it; return its result or raise its error."""
        return self.starts(step, *arguments, **options).result(PATIENCE)

    def close(self) -> None:
        """End the session and the thread."""
        self.starts(LockingSession.close)
        self._thread.shutdown()


@pytest.fixture
def doclock_tables(engine: Engine) -> Iterator[Engine]:
    """Create the tables, with ten orders of two lines."""
    Base.metadata.create_all(engine)
    try:
        with LockingSession(engine) as session:
            session.add_all(
                Order(
                    id=number,
                    total=3,
                    lines=[Line(id=10 * number, amount=1), Line(id=10 * number + 1, amount=2)],
                )
                for number in range(1, 11)
            )
            session.commit()
        yield engine
    finally:
        Base.metadata.drop_all(engine)


@pytest.fixture
def strategy(engine: Engine) -> LockStrategy:
    """Return the strategy under test."""
    return strategy_for(engine)


@pytest.fixture
def row_locks(strategy: LockStrategy) -> None:
    """Skip the test if one lock is all locks."""
    if _locks_database(strategy):
        pytest.skip("one lock is all locks")


@pytest.fixture
def read_committed_engine(engine: Engine) -> Engine:
    """Return an engine with which programs without locks lose updates, for the stress run without locks.

    Override it if the database's default level refuses the second writer of a row.
    """
    return engine


@pytest.fixture
def alice(doclock_tables: Engine) -> Iterator[Actor]:
    """Return the first session."""
    with closing(Actor(doclock_tables)) as actor:
        yield actor


@pytest.fixture
def bob(doclock_tables: Engine) -> Iterator[Actor]:
    """Return the second session."""
    with closing(Actor(doclock_tables)) as actor:
        yield actor


def supports(strategy: LockStrategy, lock: LockOptions) -> bool:
    """Return whether the strategy says that it has this lock."""
    try:
        check_support(strategy, lock)
    except LockNotSupported:
        return False
    return True


def _locks_database(strategy: LockStrategy) -> bool:
    return strategy.statements.locked is Locked.DATABASE


def lock_order(session: LockingSession, lock: LockOptions, number: int = 1, **options: Any) -> int:
    """Lock an order, and return its total."""
    return session.get_one_entity(Order, number, lock, **options).total


def total_of(session: LockingSession, number: int = 1) -> int:
    """Return the total of an order, as the session has it in memory."""
    return session.get_one(Order, number).total


def locked_numbers(session: LockingSession, lock: LockOptions) -> list[int]:
    """Lock the first three orders as a set, and return their numbers."""
    statement = session.entity_set(Order, lock).where(Order.id < 4).order_by(Order.id)
    return [order.id for order in session.scalars(statement)]


def add_to_total(session: LockingSession, amount: int, number: int = 1) -> None:
    """Add to the first line of a locked order, and to its total."""
    order = session.get_one(Order, number)
    order.lines[0].amount += amount
    order.total += amount
    session.flush()


def queued(waiter: Actor, holder: Actor, step: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Start a step of the waiter; return it when it waits for the holder, fail if it ends instead.

    If neither the strategy nor the file can tell, a second in which the step does not end must
    suffice.
    """
    started = waiter.starts(step, *arguments)
    strategy = strategy_for(waiter.session.get_bind())
    if strategy.monitoring is None and not _locks_database(strategy):
        wait([started], 1.0)
        assert not started.done(), "the lock was granted, or refused, in place of a wait"
    else:
        wait_until_blocked(waiter.session, holder.session, step=started, timeout=PATIENCE)
    return started


def tries(session: LockingSession, lock: LockOptions, number: int = 1) -> DocLockError | None:
    """Lock an order, and end the transaction; return the error if the lock was refused."""
    try:
        lock_order(session, lock, number)
    except DocLockError as error:
        return error
    finally:
        session.rollback()
    return None


class TestSupport:
    """Each lock is taken if the strategy supports it, and refused otherwise."""

    @pytest.mark.parametrize("lock", LOCKS, ids=str)
    def test_a_lock_is_held_or_not_supported(
        self, alice: Actor, strategy: LockStrategy, lock: LockOptions
    ) -> None:
        if not supports(strategy, lock):
            with pytest.raises(LockNotSupported):
                alice.does(locked_numbers, lock)
            assert not alice.session.held_locks
            return
        if SKIP not in lock:
            alice.does(lock_order, lock, 9)
            assert base_of(alice.session.held_locks[Order, (9,)]) is base_of(lock)
            alice.does(LockingSession.rollback)
        assert alice.does(locked_numbers, lock) == [1, 2, 3]
        assert set(alice.session.held_locks) == {(Order, (number,)) for number in (1, 2, 3)}

    def test_for_update_is_supported(self, strategy: LockStrategy) -> None:
        check_support(strategy, FOR_UPDATE)

    def test_an_error_of_no_database_has_no_code(self, strategy: LockStrategy) -> None:
        assert strategy.errors.native_code(ValueError()) is None


class TestExclusion:
    """A second session waits, or is refused, while the first holds the document."""

    def test_for_update_waits_and_sees_what_the_holder_wrote(
        self, alice: Actor, bob: Actor
    ) -> None:
        alice.does(lock_order, FOR_UPDATE)
        step = queued(bob, alice, lock_order, FOR_UPDATE)
        alice.does(add_to_total, 10)
        alice.does(LockingSession.commit)
        assert step.result(PATIENCE) == 13
        assert bob.does(lambda session: session.get_one(Order, 1).lines[0].amount) == 11

    def test_what_was_read_before_is_read_again_after_the_wait(
        self, alice: Actor, bob: Actor
    ) -> None:
        def load(session: LockingSession) -> tuple[Order, list[Line]]:
            order = session.get_one(Order, 1)
            return order, list(order.lines)

        bob.session.expire_on_commit = False  # so that only the lock refreshes them
        kept, lines = bob.does(load)
        bob.does(LockingSession.commit)
        alice.does(lock_order, FOR_UPDATE)
        step = queued(bob, alice, lock_order, FOR_UPDATE)
        alice.does(add_to_total, 10)
        alice.does(LockingSession.commit)
        assert step.result(PATIENCE) == 13
        assert bob.does(lambda _: (kept.total, lines[0].amount)) == (13, 11)

    def test_a_rollback_of_the_holder_gives_the_old_values(self, alice: Actor, bob: Actor) -> None:
        alice.does(lock_order, FOR_UPDATE)
        step = queued(bob, alice, lock_order, FOR_UPDATE)
        alice.does(add_to_total, 10)
        alice.does(LockingSession.rollback)
        assert step.result(PATIENCE) == 3

    @pytest.mark.parametrize("lock", [FOR_UPDATE, FOR_UPDATE | LockOptions.NoKey], ids=str)
    def test_no_wait_fails_at_once(self, alice: Actor, bob: Actor, lock: LockOptions) -> None:
        alice.does(lock_order, lock)
        error = bob.does(tries, FOR_UPDATE | NO_WAIT)
        assert isinstance(error, LockNotAvailable)
        assert (error.entity, error.ident) == (Order, 1)
        assert error.retryable
        assert not bob.session.held_locks

    def test_readers_run_side_by_side(self, alice: Actor, bob: Actor) -> None:
        assert alice.does(lock_order, SHARED) == bob.does(lock_order, SHARED) == 3

    def test_shared_read_never_sees_half_a_change(
        self, alice: Actor, bob: Actor, strategy: LockStrategy
    ) -> None:
        def read(session: LockingSession) -> tuple[int, int]:
            order = session.get_one_entity(Order, 1, SHARED)
            return order.total, sum(line.amount for line in order.lines)

        alice.does(lock_order, FOR_UPDATE)
        alice.does(add_to_total, 10)
        if may_wait(strategy, SHARED):
            step = queued(bob, alice, read)
        else:
            step = bob.starts(read)
            assert step.result(PATIENCE) == (3, 3)
        alice.does(LockingSession.commit)
        assert step.result(PATIENCE) in {(3, 3), (13, 13)}

    def test_a_snapshot_waits_for_nobody_and_stays_as_it_is(self, alice: Actor, bob: Actor) -> None:
        def total_of_lines(session: LockingSession) -> int:
            session.expire_all()
            return sum(session.scalars(select(Line.amount).where(Line.order_id == 1)))

        alice.does(lock_order, FOR_UPDATE)
        assert bob.does(lock_order, SNAPSHOT) == 3
        assert bob.does(total_of_lines) == 3
        alice.does(add_to_total, 10)
        if not _locks_database(strategy_for(alice.session.get_bind())):
            alice.does(LockingSession.commit)
        assert bob.does(total_of_lines) == 3

    def test_another_document_is_free(
        self, alice: Actor, bob: Actor, strategy: LockStrategy
    ) -> None:
        alice.does(lock_order, FOR_UPDATE, 1)
        error = bob.does(tries, FOR_UPDATE | NO_WAIT, 2)
        assert (error is None) is not _locks_database(strategy)

    def test_skip_locked_leaves_out_what_another_holds(
        self, alice: Actor, bob: Actor, strategy: LockStrategy
    ) -> None:
        if not supports(strategy, FOR_UPDATE | SKIP):
            pytest.skip("not supported, see TestSupport")
        alice.does(lock_order, FOR_UPDATE, 2)
        assert bob.does(locked_numbers, FOR_UPDATE | SKIP) == [1, 3]


class TestTimeout:
    """``lock_timeout`` ends a wait, and has no effect afterwards."""

    def test_a_wait_past_it_is_not_available(self, alice: Actor, bob: Actor) -> None:
        alice.does(lock_order, FOR_UPDATE)
        with pytest.raises(LockNotAvailable) as caught:
            bob.does(lock_order, FOR_UPDATE, lock_timeout=1)
        assert (caught.value.entity, caught.value.ident) == (Order, 1)
        assert not bob.session.held_locks

    def test_the_next_transaction_waits_as_the_server_is_configured(
        self, alice: Actor, bob: Actor
    ) -> None:
        alice.does(lock_order, FOR_UPDATE)
        with pytest.raises(LockNotAvailable):
            bob.does(lock_order, FOR_UPDATE, lock_timeout=0)
        bob.does(LockingSession.rollback)
        step = queued(bob, alice, lock_order, FOR_UPDATE)
        alice.does(LockingSession.commit)
        assert step.result(PATIENCE) == 3

    def test_a_lock_that_is_free_is_granted_within_it(self, alice: Actor) -> None:
        assert alice.does(lock_order, FOR_UPDATE, lock_timeout=30) == 3


class TestRelease:
    """A lock ends with its transaction, or with the savepoint in which it was taken."""

    @pytest.mark.parametrize(
        "end", ["commit", "rollback", "save_changes", "release_locks", "close"]
    )
    def test_the_end_of_the_transaction_releases_it(
        self, alice: Actor, bob: Actor, end: str
    ) -> None:
        alice.does(lock_order, FOR_UPDATE)
        assert bob.does(tries, FOR_UPDATE | NO_WAIT) is not None
        alice.does(getattr(LockingSession, end))
        assert bob.does(tries, FOR_UPDATE | NO_WAIT) is None
        assert not alice.session.held_locks

    def test_a_savepoint_keeps_what_was_locked_before_it(self, alice: Actor, bob: Actor) -> None:
        def lock_in_savepoint(session: LockingSession) -> None:
            savepoint = session.begin_nested()
            lock_order(session, FOR_UPDATE, 2)
            savepoint.rollback()

        alice.does(lock_order, FOR_UPDATE, 1)
        alice.does(lock_in_savepoint)
        assert dict(alice.session.held_locks) == {(Order, (1,)): FOR_UPDATE}
        assert isinstance(bob.does(tries, FOR_UPDATE | NO_WAIT, 1), LockNotAvailable)

    def test_the_changes_of_a_savepoint_that_is_released_are_kept(self, alice: Actor) -> None:
        def change(session: LockingSession) -> None:
            with session.begin_nested():
                lock_order(session, FOR_UPDATE)
                add_to_total(session, 10)

        alice.does(change)
        assert alice.session.held_locks
        alice.does(LockingSession.commit)
        assert alice.does(total_of) == 13

    @pytest.mark.usefixtures("row_locks")
    def test_a_failed_lock_in_a_savepoint_leaves_the_rest(self, alice: Actor, bob: Actor) -> None:
        def one_and_not_the_other(session: LockingSession) -> None:
            # NoWait, because some databases limit all waits of a transaction
            lock_order(session, FOR_UPDATE | NO_WAIT, 2)
            savepoint = session.begin_nested()
            with pytest.raises(LockNotAvailable):
                lock_order(session, FOR_UPDATE | NO_WAIT, 1)
            savepoint.rollback()
            add_to_total(session, 10, 2)
            session.commit()

        alice.does(lock_order, FOR_UPDATE, 1)
        bob.does(one_and_not_the_other)
        assert bob.does(total_of, 2) == 13


class TestErrors:
    """Failures are raised as the errors that callers know."""

    @pytest.mark.usefixtures("row_locks")
    def test_a_deadlock_has_one_victim(self, alice: Actor, bob: Actor) -> None:
        alice.does(lock_order, FOR_UPDATE, 1)
        bob.does(lock_order, FOR_UPDATE, 2)
        step = queued(bob, alice, lock_order, FOR_UPDATE, 1)
        steps = {alice: alice.starts(lock_order, FOR_UPDATE, 2), bob: step}
        wait(steps.values(), PATIENCE, FIRST_EXCEPTION)
        (victim,) = [who for who, step in steps.items() if step.done() and step.exception()]
        error = steps.pop(victim).exception()
        assert isinstance(error, DeadlockDetected), error
        victim.does(LockingSession.rollback)
        (survivor,) = steps.values()
        assert survivor.result(PATIENCE) == 3

    def test_a_failed_lock_is_an_operational_error_with_what_the_driver_raised(
        self, alice: Actor, bob: Actor
    ) -> None:
        alice.does(lock_order, FOR_UPDATE)
        error = bob.does(tries, FOR_UPDATE | NO_WAIT)
        assert isinstance(error, LockFailed)
        assert error.orig is not None
        assert str(Order.__name__) in str(error)

    def test_a_read_lock_is_not_upgraded(self, alice: Actor) -> None:
        alice.does(lock_order, SHARED)
        with pytest.raises((LockUpgradeRefused, WrongIsolation)):
            alice.does(lock_order, FOR_UPDATE)

    def test_a_snapshot_does_not_start_in_an_open_transaction(self, alice: Actor) -> None:
        alice.does(lock_order, FOR_UPDATE)
        with pytest.raises(WrongIsolation):
            alice.does(lock_order, SNAPSHOT, 2)

    def test_a_write_without_the_lock_is_refused(self, alice: Actor) -> None:
        def write(session: LockingSession) -> None:
            session.get_one(Order, 1).total = 99
            session.commit()

        with pytest.raises(UnlockedWrite):
            alice.does(write)

    @pytest.mark.usefixtures("row_locks")
    def test_run_transaction_runs_the_victim_of_a_deadlock_again(
        self, doclock_tables: Engine
    ) -> None:
        both_hold_one = threading.Barrier(2)
        tries_of: dict[int, int] = {1: 0, 2: 0}
        factory = sessionmaker(doclock_tables, class_=LockingSession)

        def add_to_both(first: int, second: int) -> None:
            def work(session: LockingSession) -> None:
                tries_of[first] += 1
                lock_order(session, FOR_UPDATE, first)
                if tries_of[first] == 1:
                    both_hold_one.wait(PATIENCE)
                lock_order(session, FOR_UPDATE, second)
                add_to_total(session, 10, first)
                add_to_total(session, 10, second)

            run_transaction(factory, work)

        with ThreadPoolExecutor(2) as threads:
            steps = [threads.submit(add_to_both, 1, 2), threads.submit(add_to_both, 2, 1)]
        for step in steps:
            step.result()
        assert sum(tries_of.values()) > 2
        with factory() as session:
            assert [total_of(session, number) for number in (1, 2)] == [23, 23]


class TestNamedLock:
    """lock_key() excludes, or is not supported."""

    def test_a_key_is_held_by_one(self, alice: Actor, bob: Actor) -> None:
        try:
            alice.does(LockingSession.lock_key, "suite:1")
        except LockNotSupported:
            assert not alice.session.held_locks
            return
        with pytest.raises(LockNotAvailable):
            bob.does(LockingSession.lock_key, "suite:1", lock_timeout=0)
        bob.does(LockingSession.rollback)
        alice.does(LockingSession.commit)
        bob.does(LockingSession.lock_key, "suite:1")


class TestClaims:
    """claim_each() gives each row to one worker."""

    def test_two_workers_share_the_rows(
        self, doclock_tables: Engine, strategy: LockStrategy
    ) -> None:
        skips = _locks_database(strategy) or supports(strategy, FOR_UPDATE | SKIP)
        lock_timeout = None if skips else 0  # without SKIP LOCKED, each row is tried with NoWait
        factory = sessionmaker(doclock_tables, class_=LockingSession)
        statement = select(Order).where(Order.total < 100)
        start = threading.Barrier(2)

        def work() -> list[int]:
            claimed = []
            start.wait(PATIENCE)
            for claim in claim_each(
                factory, statement, until_empty=True, lock_timeout=lock_timeout
            ):
                with claim as order:
                    order.total += 100
                    claimed.append(order.id)
            return claimed

        with ThreadPoolExecutor(2) as threads:
            steps = [threads.submit(work), threads.submit(work)]
        assert sorted(steps[0].result() + steps[1].result()) == list(range(1, 11))
        with factory() as session:
            assert set(session.scalars(select(Order.total))) == {103}


class TestStress:
    """Many threads on a few documents: nothing is inconsistent with locks, and something is without."""

    def test_nothing_is_inconsistent_with_locks(self, engine: Engine) -> None:
        with fresh_tables(engine):
            outcome = run(engine, Plan(documents=2, threads=6, iterations=12))
        assert outcome.inconsistencies == 0
        assert outcome.tally.error_count == 0, outcome.tally

    def test_something_is_inconsistent_without_them(
        self, read_committed_engine: Engine, strategy: LockStrategy
    ) -> None:
        if _locks_database(strategy):
            pytest.skip("each statement of a writer locks the file; see docs/sqlite.md")
        with fresh_tables(read_committed_engine):
            for seed in range(20):  # a busy machine's scheduler may hide the race for a while
                plan = Plan(documents=1, threads=8, iterations=15, locks=False, seed=seed)
                if run(read_committed_engine, plan).inconsistencies:
                    return
        pytest.fail("20 runs without locks were consistent: this proves nothing of the locks")


class TestPool:
    """A connection returns to its pool unchanged."""

    def test_a_plain_transaction_after_a_lock_is_as_before(self, doclock_tables: Engine) -> None:
        with LockingSession(doclock_tables) as session:
            lock_order(session, SNAPSHOT)
        with LockingSession(doclock_tables) as session:
            lock_order(session, FOR_UPDATE)
            add_to_total(session, 10)
            session.commit()
        with doclock_tables.begin() as connection:
            connection.execute(update(Order).values(total=5))
        with LockingSession(doclock_tables) as session:
            assert total_of(session) == 5


__all__ = [
    "TestClaims",
    "TestErrors",
    "TestExclusion",
    "TestNamedLock",
    "TestPool",
    "TestRelease",
    "TestStress",
    "TestSupport",
    "TestTimeout",
    "alice",
    "bob",
    "doclock_tables",
    "read_committed_engine",
    "row_locks",
    "strategy",
]
