"""InnoDB locks more rows than PostgreSQL if no index serves the statement; the reason for it.

The library cannot add an index: these are the facts behind the traps in docs/mysql.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Mapped, Session, mapped_column

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database

pytestmark = pytest.mark.databases("postgresql", "mysql", "mariadb")

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
SkipLocked = LockOptions.SkipLocked


class Base(DeclarativeBase):
    pass


class Task(Base):
    __tablename__ = "lk_task"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    indexed: Mapped[int] = mapped_column(index=True)
    other: Mapped[int]


@pytest.fixture(autouse=True)
def tasks(database: Database, engine: sa.Engine) -> None:
    """Have so many tasks that MySQL reads the index: of 200 it reads the whole table instead."""
    database.create(Base.metadata)
    rows = [{"id": n, "indexed": n, "other": n} for n in range(1, 2_001)]
    with engine.begin() as connection:
        connection.execute(sa.insert(Task), rows)
    if database.name != "postgresql":
        with database.observer().connect() as connection:
            connection.exec_driver_sql("ANALYZE TABLE lk_task").all()


def first(session: LockingSession, column: InstrumentedAttribute[int]) -> list[int]:
    """Lock the first task, in this order, of those that nobody holds."""
    query = session.entity_set(Task, ForUpdate | SkipLocked).order_by(column).limit(1)
    return [task.id for task in session.scalars(query)]


def test_the_second_worker_gets_the_next_where_an_index_gives_the_order(
    session: LockingSession, other: LockingSession
) -> None:
    assert first(session, Task.indexed) == [1]
    assert first(other, Task.indexed) == [2]


def test_without_an_index_the_first_worker_locks_all_candidates_on_innodb(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    assert first(session, Task.other) == [1]
    assert first(other, Task.other) == ([2] if database.name == "postgresql" else [])


def test_a_condition_with_an_index_meets_its_own_rows_alone(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Task, 20, ForUpdate)
    query = session.entity_set(Task, ForUpdate | NoWait).where(Task.indexed == 1)
    assert [task.id for task in session.scalars(query)] == [1]


def test_a_condition_without_an_index_meets_every_row_on_innodb(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Task, 20, ForUpdate)
    query = session.entity_set(Task, ForUpdate | NoWait).where(Task.other == 1)
    if database.name == "postgresql":
        assert [task.id for task in session.scalars(query)] == [1]
    else:
        with pytest.raises(LockNotAvailable):
            session.scalars(query)


def test_it_keeps_only_its_own_rows(session: LockingSession, other: LockingSession) -> None:
    task = session.scalars(session.entity_set(Task, ForUpdate).where(Task.other == 1)).one()
    assert finds_held(Task, 1)(other)
    assert not finds_held(Task, 20)(other)
    assert task


@pytest.mark.databases("mysql", "mariadb")
def test_at_repeatable_read_it_would_keep_the_table(
    make_engine: Callable[..., sa.Engine], other: LockingSession
) -> None:
    with Session(make_engine(isolation_level="REPEATABLE READ")) as plain:
        query: sa.Select[Any] = sa.select(Task).where(Task.other == 1).with_for_update()
        task = plain.scalars(query).one()
        assert finds_held(Task, 20)(other)
        assert task
