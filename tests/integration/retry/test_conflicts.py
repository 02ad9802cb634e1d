"""Conflicts detected only at a flush or at the commit are retried like deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    SnapshotConflict,
    run_transaction,
)
from sa_doclock import LockOptions as Lock
from tests.integration.locking.connections import set_patience
from tests.integration.locking.failures.test_conflicts import is_lenient, tells_517
from tests.integration.locking.steps import NAMES as NAMES_DEADLOCK
from tests.integration.locking.steps import TOTALS
from tests.integration.retry.counting import (
    NAMES,
    Counted,
    Crossing,
    Session,
    Take,
    by_flush,
    by_lock,
    by_statement,
    by_text,
    deadlocks,
    own_logic,
    rename,
)
from tests.integration.retry.counting import Session as DeadlockSession
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Base, Customer, Order

Factory = sessionmaker[LockingSession]
MakeEngine = Callable[..., sa.Engine]
Run = Callable[..., list[Any]]


def renamed(ident: int) -> sa.Update:
    return sa.update(Customer).where(Customer.id == ident).values(name="by another")


def at_level(make_engine: MakeEngine, level: str) -> Factory:
    return sessionmaker(make_engine(isolation_level=level), class_=LockingSession)


def once(act: Callable[[], Any]) -> Callable[[], None]:
    """Make the function that does this at its first call, and nothing later."""
    calls: list[Callable[[], Any]] = [act]

    def call() -> None:
        if calls:
            calls.pop()()

    return call


@pytest.mark.databases("postgresql")
def test_a_commit_that_is_not_serializable(make_engine: MakeEngine, elsewhere: Run) -> None:
    factory = at_level(make_engine, "SERIALIZABLE")

    def act(session: Session) -> None:
        """Let another session commit a write between this function's work and its commit."""
        session.scalars(NAMES).all()
        with factory() as other:
            other.scalars(NAMES).all()
            rename(session, "mine")
            if fn.runs == 1:
                other.execute(renamed(2))
            other.commit()

    fn = Counted(act=act)
    assert run_transaction(factory, fn) == 2
    assert elsewhere(NAMES) == [(1, "mine"), (2, "by another")]


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.databases("postgresql", "mariadb")
def test_a_flush_over_what_another_has_written(
    database: Database, make_engine: MakeEngine, elsewhere: Run, swallow: bool
) -> None:
    if database.name == "mariadb" and is_lenient(elsewhere):
        pytest.skip("innodb_snapshot_isolation is off, as before MariaDB 11.6.2")
    interfere = once(lambda: elsewhere(renamed(1)))

    def act(session: Session) -> None:
        session.scalars(NAMES).all()
        interfere()
        with suppress(*[SnapshotConflict] * swallow):
            rename(session, "mine")

    fn = Counted(act=act)
    assert run_transaction(at_level(make_engine, "REPEATABLE READ"), fn) == 2
    assert elsewhere(NAMES)[0] == (1, "mine")


@tells_517
@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_flush_in_a_snapshot_of_sqlite(
    session_factory: Factory, elsewhere: Run, swallow: bool
) -> None:
    interfere = once(lambda: elsewhere(renamed(2)))

    def act(session: Session) -> None:
        session.get_one_entity(Order, 1, LockOptions.SharedRead)
        interfere()
        with suppress(*[SnapshotConflict] * swallow):
            rename(session, "mine")

    fn = Counted(act=act)
    assert run_transaction(session_factory, fn) == 2
    assert elsewhere(NAMES) == [(1, "mine"), (2, "by another")]


@tells_517
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_swallowed_statement_of_sqlite_is_all_that_was_undone(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        session.connection().exec_driver_sql("BEGIN")
        session.scalars(NAMES).all()
        elsewhere(renamed(2))
        with pytest.raises(SnapshotConflict):
            session.execute(renamed(1))

    fn = Counted(act=act)
    assert run_transaction(session_factory, fn) == 1


@pytest.mark.databases("postgresql")
def test_a_constraint_that_is_looked_at_by_the_commit_is_not_repeated(
    engine: sa.Engine, session_factory: Factory, elsewhere: Run
) -> None:
    table = sa.Table("lk_deferred", sa.MetaData(), sa.Column("id", sa.Integer))
    column = "id INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED"
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS lk_deferred")
        connection.exec_driver_sql(f"CREATE TABLE lk_deferred ({column})")
    fn = Counted(act=lambda session: session.execute(sa.insert(table), [{"id": 1}, {"id": 1}]))
    with pytest.raises(IntegrityError):
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert elsewhere(sa.select(table)) == []
    with engine.begin() as connection:
        table.drop(connection)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_table_that_is_altered_meanwhile(make_engine: MakeEngine) -> None:
    """The server says "cached plan must not change result type", or "please retry transaction"."""
    engine = make_engine()
    postgresql = engine.dialect.name == "postgresql"
    engine = make_engine(
        isolation_level="READ COMMITTED" if postgresql else "REPEATABLE READ",
        **({"connect_args": {"prepare_threshold": 0}} if postgresql else {}),
    )
    altered = (
        "ALTER COLUMN total TYPE bigint" if postgresql else "MODIFY total BIGINT, ALGORITHM=COPY"
    )
    read = sa.text("SELECT * FROM rt_altered")
    factory = sessionmaker(engine, class_=LockingSession)

    def alter() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE rt_altered {altered}")

    def act(session: Session) -> None:
        session.scalars(NAMES).all()  # takes the snapshot
        with factory() as other:  # on another connection
            other.scalars(NAMES).all()
            once_altered()
        assert [*session.execute(read)] == [(1, 5)]

    once_altered = once(alter)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE rt_altered (id INTEGER PRIMARY KEY, total INTEGER)"
        )
        connection.exec_driver_sql("INSERT INTO rt_altered VALUES (1, 5)")
    try:
        with factory() as session:
            session.execute(read).all()
            session.commit()
        fn = Counted(act=act)
        assert run_transaction(factory, fn, backoff=0) == 2
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE rt_altered")


# --------------------------------------------------------------------------------------------------
# A failed COMMIT is retried, unless another database might already have committed.

TOTAL = sa.select(Order.total).where(Order.id == 1)


@pytest.fixture
def two_databases(session_factory: Factory, tmp_path: Path) -> Iterator[Factory]:
    """Move customers to a separate file."""
    second = sa.create_engine(f"sqlite:///{tmp_path}/second.db")
    Base.metadata.create_all(second)
    bind = session_factory.kw["bind"]
    yield sessionmaker(bind, class_=LockingSession, binds={Customer: second})
    second.dispose()


def not_let_through(factory: Factory, reader: Session) -> Counted:
    """Make a function whose transaction SQLite cannot commit at first, because of a reader."""

    def act(session: Session) -> None:
        session.get_one_entity(Order, 1, Lock.ForUpdate).total += 1
        session.execute(sa.update(Customer).values(name="mine"))
        if fn.runs == 1:
            reader.get_one_entity(Order, 2, Lock.SharedRead)
        else:
            reader.release_locks()

    set_patience(factory.kw["bind"], 0)
    fn = Counted(act=act)
    return fn


@pytest.mark.databases("sqlite-journal")
def test_a_commit_that_the_database_refuses_is_repeated(
    session_factory: Factory, other: Session, elsewhere: Run
) -> None:
    fn = not_let_through(session_factory, other)
    assert run_transaction(session_factory, fn, retry_not_available=True) == 2
    assert elsewhere(TOTAL) == [(31,)]


@pytest.mark.databases("sqlite-journal")
def test_not_so_where_another_database_may_have_committed(
    two_databases: Factory, other: Session
) -> None:
    fn = not_let_through(two_databases, other)
    with pytest.raises(LockNotAvailable) as caught:
        run_transaction(two_databases, fn, retry_not_available=True)
    assert fn.runs == 1
    assert caught.value.attempts == 0
    other.release_locks()


def both(session: Session) -> None:
    session.get(Order, 1)
    session.get(Customer, 1)


def of_commit() -> DeadlockDetected:
    return DeadlockDetected("at COMMIT", orig=OSError("1213"))


@own_logic
def test_a_deadlock_before_the_commit_is_repeated_with_two_databases(
    two_databases: Factory,
) -> None:
    in_statement = DeadlockDetected("no", statement="UPDATE", orig=OSError("1213"))
    fn = Counted(in_statement, *deadlocks(1), act=both)
    assert run_transaction(two_databases, fn) == 3


@own_logic
def test_one_of_the_commit_of_the_only_database_is_repeated(two_databases: Factory) -> None:
    fn = Counted(of_commit(), act=lambda session: session.get(Order, 1))
    assert run_transaction(two_databases, fn) == 2


@own_logic
def test_one_of_a_commit_in_two_phases_is_repeated(two_databases: Factory) -> None:
    def act(session: Session) -> None:
        both(session)
        session.twophase = fn.runs == 1  # as if created so; SQLite has no PREPARE for the rest

    fn = Counted(of_commit(), act=act)
    assert run_transaction(two_databases, fn) == 2


@own_logic
def test_one_of_the_commit_where_one_can(two_databases: Factory) -> None:
    fn = Counted(of_commit(), act=both)
    with pytest.raises(DeadlockDetected):
        run_transaction(two_databases, fn)
    assert fn.runs == 1


# --------------------------------------------------------------------------------------------------
# Whichever statement the server picks as deadlock victim, the whole function runs again.

Player = Actor[LockingSession]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.parametrize("take", [by_lock, by_flush, by_statement, by_text])
def test_the_victim_is_run_again_in_a_new_session(
    alice: Player, bob: Player, session_factory: Factory, naps: list[float], take: Take
) -> None:
    crossing = Crossing(take)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert len({id(session) for _, session in crossing.runs}) == 3
    assert not any(session.in_transaction() for _, session in crossing.runs)
    assert len(naps) == 1


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_what_is_committed_is_what_one_run_of_each_has_written(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run
) -> None:
    def add_one(session: DeadlockSession, ident: int) -> None:
        by_lock(session, ident)
        session.get_one(Order, ident).total += 1
        session.save_changes()  # only flushes here

    crossing = Crossing(add_one)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert elsewhere(TOTALS) == [(1, 32), (2, 7)]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_a_single_attempt_raises_what_the_server_said(
    alice: Player,
    bob: Player,
    session_factory: Factory,
    elsewhere: Run,
    naps: list[float],
) -> None:
    def add_one(session: DeadlockSession, ident: int) -> None:
        session.execute(sa.update(Order).where(Order.id == ident).values(total=Order.total + 1))

    came = Crossing(add_one).play(alice, bob, session_factory, attempts=1)
    (failure,) = [one for one in came if isinstance(one, BaseException)]
    assert type(failure) is DeadlockDetected
    assert failure.attempts == 1
    assert str(failure).startswith(f"the transaction on {alice.database.name}: chosen as the vic")
    assert "(given up after 1 attempt)" in str(failure)
    assert failure.orig is not None
    assert naps == []
    assert elsewhere(TOTALS) == [(1, 31), (2, 6)]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_a_deadlock_in_a_savepoint_that_is_rolled_back(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run
) -> None:
    """PostgreSQL keeps and commits the rest; InnoDB keeps nothing, so the function runs again."""

    def insert_and_take(session: DeadlockSession, ident: int) -> None:
        session.add(Customer(id=10 + ident, name="rest"))
        session.flush()
        by_statement(session, ident)

    def take_in_savepoint(session: DeadlockSession, ident: int) -> None:
        try:
            with session.begin_nested():
                by_statement(session, ident)
        except DeadlockDetected as error:
            crossing.refused.append(error)

    crossing = Crossing(insert_and_take, take_in_savepoint)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.refused) == 1
    repeated = alice.database.name != "postgresql"
    assert len(crossing.runs) == (3 if repeated else 2)
    assert len([name for _, name in elsewhere(NAMES_DEADLOCK) if name == "rest"]) == 2
