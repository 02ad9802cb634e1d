"""Conflicts found only at a flush or at the commit are repeated as deadlocks are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, SnapshotConflict, run_transaction
from tests.integration.locking.failures.test_conflicts import is_lenient, tells_517
from tests.integration.retry.counting import NAMES, Counted, Session, rename
from tests.support.databases import Database
from tests.support.models import Customer, Order

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
        """Let another read, write and commit, between all that this does and its commit."""
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
