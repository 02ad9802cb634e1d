"""Wrong arguments are refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    joinedload,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    async_claim_each,
    claim_each,
    with_lock,
)
from tests.integration.claims.jobs import NEW, Base, Job, Step
from tests.support.rows import rows


class Unsent:
    """A session factory that nobody may call."""

    def __call__(self) -> LockingSession:
        pytest.fail("a session was made")


class Mapping(DeclarativeBase):
    pass


class Summary(Mapping):
    __table__ = sa.select(Job.id, Job.state).subquery()
    __mapper_args__ = {"primary_key": [__table__.c.id]}  # noqa: RUF012


class Reported(Mapping):
    __tablename__ = "cl_reported"
    __table_args__ = {"info": {"is_view": True}}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)


STATEMENTS: dict[str, tuple[Any, type[Exception]]] = {
    "class": (Job, TypeError),
    "text": ("SELECT 1", TypeError),
    "text()": (sa.text("SELECT 1"), LockNotSupported),
    "update": (sa.update(Job), LockNotSupported),
    "table": (sa.select(Job.__table__), LockNotSupported),
    "column": (sa.select(Job.id), ValueError),
    "columns": (sa.select(Job.id, Job.state), ValueError),
    "entity and column": (sa.select(Job, Job.id), ValueError),
    "two entities": (sa.select(Job, Step), ValueError),
    "limit": (NEW.limit(5), ValueError),
    "offset": (NEW.offset(5), ValueError),
    "fetch": (NEW.fetch(5), ValueError),
    "distinct": (NEW.distinct(), LockNotSupported),
    "group by": (NEW.group_by(Job.id), LockNotSupported),
    "union": (NEW.union(NEW), LockNotSupported),
    "from statement": (sa.select(Job).from_statement(sa.text("SELECT 1")), LockNotSupported),
    "for update": (NEW.with_for_update(), LockMisuse),
    "with_lock": (with_lock(NEW, LockOptions.ForUpdate), LockMisuse),
    "with_lock snapshot": (with_lock(NEW, LockOptions.SnapshotRead), LockMisuse),
    "joinedload": (NEW.options(joinedload(Job.steps)), LockNotSupported),
    "yield_per": (NEW.execution_options(yield_per=10), LockNotSupported),
    "subquery": (sa.select(Summary), LockNotSupported),
    "view": (sa.select(Reported), LockNotSupported),
}
ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "limit 0": ({"limit": 0}, ValueError),
    "limit -1": ({"limit": -1}, ValueError),
    "limit True": ({"limit": True}, TypeError),
    "limit 1.5": ({"limit": 1.5}, TypeError),
    "batch 0": ({"batch": 0}, ValueError),
    "batch None": ({"batch": None}, TypeError),
    "batch True": ({"batch": True}, TypeError),
    "batch too large": ({"batch": 501}, ValueError),
    "attempts 0": ({"attempts": 0}, ValueError),
    "on_error": ({"on_error": "ignore"}, ValueError),
    "lock_timeout -1": ({"lock_timeout": -1}, ValueError),
    "lock_timeout nan": ({"lock_timeout": float("nan")}, ValueError),
    "lock_timeout inf": ({"lock_timeout": float("inf")}, ValueError),
    "lock_timeout True": ({"lock_timeout": True}, TypeError),
    "lock_timeout text": ({"lock_timeout": "5"}, TypeError),
    "order_by text": ({"order_by": "id"}, TypeError),
    "order_by number": ({"order_by": [Job.id, 1]}, TypeError),
    "sleep": ({"sleep": 1}, TypeError),
}
each = pytest.mark.parametrize("claim", [claim_each, async_claim_each])


@each
@rows("name", STATEMENTS)
def test_a_statement(name: str, claim: Any) -> None:
    statement, kind = STATEMENTS[name]
    with pytest.raises(kind):
        claim(Unsent(), statement)


@each
@rows("name", ARGUMENTS)
def test_an_argument(name: str, claim: Any) -> None:
    arguments, kind = ARGUMENTS[name]
    with pytest.raises(kind):
        claim(Unsent(), NEW, **arguments)


@each
def test_an_order_that_is_given_twice(claim: Any) -> None:
    with pytest.raises(ValueError, match="already has an ORDER BY"):
        claim(Unsent(), NEW.order_by(Job.id), order_by=Job.weight)


@each
def test_a_session_in_place_of_a_factory(claim: Any) -> None:
    scoped = scoped_session(sessionmaker(class_=LockingSession))
    of_tasks = async_scoped_session(async_sessionmaker(class_=AsyncLockingSession), int)
    for factory in (None, LockingSession(), scoped, of_tasks):
        with pytest.raises(TypeError, match="claim_each"):
            claim(factory, NEW)


@pytest.fixture
def view(engine: sa.Engine) -> Iterator[type[Any]]:
    """Make a view that is mapped like a table."""

    class Own(DeclarativeBase):
        pass

    class NewJob(Own):
        __tablename__ = "cl_new_job"
        id: Mapped[int] = mapped_column(primary_key=True)

    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW IF EXISTS cl_new_job")
        connection.exec_driver_sql("CREATE VIEW cl_new_job AS SELECT id FROM cl_job")
    yield NewJob
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW cl_new_job")


def test_a_view_of_the_database(
    session_factory: sessionmaker[LockingSession], view: type[Any]
) -> None:
    for _ in range(2):
        with pytest.raises(LockNotSupported, match="'cl_new_job' is a view"):
            next(claim_each(session_factory, sa.select(view)))


@pytest.mark.databases("postgresql")
def test_a_materialized_view(
    engine: sa.Engine, session_factory: sessionmaker[LockingSession], view: type[Any]
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW cl_new_job")
        connection.exec_driver_sql("CREATE MATERIALIZED VIEW cl_new_job AS SELECT id FROM cl_job")
    try:
        with pytest.raises(LockNotSupported, match="'cl_new_job' is a view"):
            next(claim_each(session_factory, sa.select(view)))
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP MATERIALIZED VIEW cl_new_job")
            connection.exec_driver_sql("CREATE VIEW cl_new_job AS SELECT id FROM cl_job")


def test_a_factory_of_other_sessions(engine: sa.Engine) -> None:
    with pytest.raises(TypeError, match="makes a Session"):
        next(claim_each(sessionmaker(engine, class_=Session), NEW))  # type: ignore[arg-type]


def test_a_factory_that_gives_a_session_in_use(session: LockingSession) -> None:
    session.begin()
    with pytest.raises(LockMisuse, match="needs new sessions"):
        next(claim_each(lambda: session, NEW))
    assert session.in_transaction()


def test_autocommit(engine: sa.Engine) -> None:
    factory = sessionmaker(
        engine.execution_options(isolation_level="AUTOCOMMIT"), class_=LockingSession
    )
    if engine.dialect.name != "sqlite":  # which has its own way to say so
        with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
            next(claim_each(factory, NEW))


def test_the_tables_of_these_tests_are_tables() -> None:
    assert not any(table.info for table in Base.metadata.tables.values())
