"""Supported statements: keys, hierarchies, joins, options, documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    contains_eager,
    joinedload,
    load_only,
    mapped_column,
    scoped_session,
    selectinload,
    sessionmaker,
    with_loader_criteria,
)

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    UnlockedWrite,
    async_claim_each,
    claim_each,
    with_lock,
)
from tests.integration.claims.jobs import NEW, Base, Call, Item, Job, Log, Parcel, Step, Task, run
from tests.integration.locking.steps import finds_held
from tests.support.rows import rows

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("batch", [1, 2])

other_job = aliased(Job)
CALLS = Base.metadata.tables["cl_call"]
STATEMENTS: dict[str, tuple[sa.Select[Any], list[Any]]] = {
    "no conditions": (sa.select(Job), list(range(1, 11))),
    "alias": (sa.select(other_job).where(other_job.id < 4), [1, 2, 3]),
    "bound parameter": (
        sa.select(Job).where(Job.id < sa.bindparam("below")).params(below=3),
        [1, 2],
    ),
    "in": (sa.select(Job).where(Job.id.in_([1, 3])), [1, 3]),
    "join": (sa.select(Job).join(Job.steps).where(Step.done == sa.false()), [1, 2, 3]),
    "exists": (sa.select(Job).where(Job.steps.any(Step.id > 2)), [2, 3]),
    "subquery": (sa.select(Job).where(Job.id == sa.select(sa.func.max(Step.id)).scalar_subquery()), [6]),
    "criteria": (
        sa.select(Job).options(with_loader_criteria(Job, Job.weight == 99)),
        [1, 5, 9],
    ),
    "composite key": (sa.select(Parcel).where(Parcel.state == "new"), [(2024, n) for n in (1, 2, 3)]),
    "joined inheritance": (
        sa.select(Call).where(Call.state == "new", Call.answered == sa.false()),
        [1, 2, 3],
    ),
    "base class": (sa.select(Task).where(Task.state == "new"), [1, 2, 3]),
}  # fmt: skip


@both
def test_every_row_comes_up_once_and_is_held(session_factory: Factory, batch: int) -> None:
    for name, (statement, expected) in STATEMENTS.items():
        claims = claim_each(session_factory, statement, batch=batch)
        keys = []
        for claim in claims:
            with claim as row:
                keys.append(claim.key)
                document = Task if isinstance(row, Task) else type(row), sa.inspect(row).identity
                assert claim.session.held_locks[document] is LockOptions.ForUpdate, name
        assert keys == expected, name
        report = claims.report
        assert (report.processed, report.no_longer_matching) == (len(expected), 0), name


@both
def test_a_subclass_that_matches_no_more_is_gone(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    claims = claim_each(session_factory, STATEMENTS["joined inheritance"][0], batch=batch)
    keys = []
    for claim in claims:
        with claim:
            keys.append(claim.key)
        if claim.key == batch:
            elsewhere(sa.update(CALLS).where(CALLS.c.id == 3).values(answered=True))
    assert keys == [1, 2]
    assert claims.report.no_longer_matching == 1


def test_a_composite_key_goes_back_to_get_entity(session_factory: Factory) -> None:
    claims = claim_each(session_factory, sa.select(Parcel), on_error="collect")
    for claim in claims:
        with claim:
            raise LookupError
    with session_factory() as session:
        failed = [session.get_one_entity(Parcel, key) for key, _ in claims.report.failed]
        assert [parcel.number for parcel in failed] == [1, 2, 3]


@both
def test_loader_options_are_honoured(session_factory: Factory, batch: int) -> None:
    for options in (
        [selectinload(Job.steps), load_only(Job.state)],
        [selectinload(Job.steps)],
    ):
        claims = claim_each(session_factory, NEW.options(*options), limit=2, batch=batch)
        with next(claims) as job:
            assert "steps" in job.__dict__
            assert ("weight" in job.__dict__) is (len(options) == 1)


def test_contains_eager_shows_what_is_there_under_the_lock(
    session_factory: Factory, elsewhere: Run
) -> None:
    statement = sa.select(Job).join(Job.steps).options(contains_eager(Job.steps))
    claims = claim_each(session_factory, statement.where(Step.done == sa.false()), limit=2)
    with next(claims) as job:
        assert [step.id for step in job.steps] == [1, 2]
    elsewhere(sa.update(Step).where(Step.id == 3).values(done=True))
    with next(claims) as job:
        assert [step.id for step in job.steps] == [4]


@both
def test_a_document_may_be_written_in_its_block(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    for claim in claim_each(session_factory, sa.select(Parcel), batch=batch):
        with claim as parcel:
            parcel.state = "packed"
            parcel.items[0].name = "b"
    assert elsewhere(sa.select(Item.name).distinct()) == [("b",)]
    assert elsewhere(sa.select(Parcel.state).distinct()) == [("packed",)]


def test_another_document_may_not(session_factory: Factory) -> None:
    claims = claim_each(session_factory, sa.select(Parcel).where(Parcel.number == 1))
    for claim in claims:
        with pytest.raises(UnlockedWrite), claim:
            claim.session.get_one(Item, 2).name = "b"
    assert [type(error) for _, error in claims.report.failed] == [UnlockedWrite]


@pytest.mark.not_databases("sqlite")
def test_of_joined_inheritance_the_header_is_held(
    session_factory: Factory, other: LockingSession
) -> None:
    with claim_each(session_factory, sa.select(Call)) as claims, next(claims):
        assert finds_held(Task, 1)(other)
        assert not finds_held(Task, 2)(other)


def test_a_row_that_a_block_makes_match_comes_up_if_it_is_behind(
    session_factory: Factory, elsewhere: Run
) -> None:
    elsewhere(sa.update(Job).values(state="waiting"))
    elsewhere(sa.update(Job).where(Job.id.in_([3, 5])).values(state="new"))
    claims = claim_each(session_factory, NEW, until_empty=True)
    keys = []
    for claim in claims:
        with claim as job:
            keys.append(claim.key)
            run(job)
            if claim.key == 5:
                claim.session.get_one_entity(Job, 1, LockOptions.ForUpdate).state = "new"
    assert keys == [3, 5, 1]


def test_a_log_that_the_block_writes_keeps_the_row_from_coming_up_again(
    session_factory: Factory,
) -> None:
    unlogged = sa.select(Job).where(~sa.exists().where(Log.job_id == Job.id))
    for expected in (10, 0):
        claims = claim_each(session_factory, unlogged)
        for claim in claims:
            with claim as job:
                claim.session.add(Log(job_id=job.id, worker="me"))
        assert claims.report.processed == expected


# --------------------------------------------------------------------------------------------------
# Wrong arguments are rejected before anything is sent.


class Unsent:
    """A session factory that must not be called."""

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


STATEMENTS_BAD_INPUT: dict[str, tuple[Any, type[Exception]]] = {
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
@rows("name", STATEMENTS_BAD_INPUT)
def test_a_statement(name: str, claim: Any) -> None:
    statement, kind = STATEMENTS_BAD_INPUT[name]
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
    """Create a view, and map it like a table."""

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
    if engine.dialect.name != "sqlite":  # it has its own error
        with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
            next(claim_each(factory, NEW))


def test_the_tables_of_these_tests_are_tables() -> None:
    assert not any(table.info for table in Base.metadata.tables.values())
