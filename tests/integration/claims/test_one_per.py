"""One claim, or N, of the rows with one weight; and the index for an ordered queue."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockOptions,
    async_claim_each,
    claim_each,
    doclock_key,
)
from tests.docs.pages import text_of
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.claims.jobs import NEW, Job, Log, Step, factory, run
from tests.integration.claims.test_ending import started
from tests.integration.claims.worker import has_one_before
from tests.support.actors import PATIENCE
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# claim_each(one_per=) claims one row per value at a time, in order.

Run = Callable[..., list[Any]]
Factory = sessionmaker[LockingSession]
GROUPS, EACH = 50, 6


def worked(factory: Factory, limit: int | None = None, **options: Any) -> list[int]:
    done = []
    for claim in claim_each(factory, NEW, one_per=Job.weight, limit=limit, **options):
        with claim as job:
            run(job)
        done.append(claim.key)
    return done


@pytest.mark.not_databases("sqlite")
def test_a_value_that_is_claimed_is_left_out_and_the_others_come_up(
    session_factory: Factory, elsewhere: Run
) -> None:
    first = claim_each(session_factory, NEW, one_per=Job.weight)
    for claim in first:
        with claim as job:  # of weight 99: 1, 5 and 9
            assert job.id == 1
            elsewhere(sa.insert(Job).values(id=0, state="new", weight=99, runs=0))  # and this
            assert worked(session_factory) == [2, 3, 4, 6, 7, 8, 10]
            run(job)
        break
    assert worked(session_factory) == [0, 5, 9]


def test_rows_come_up_in_the_order_of_their_value(session_factory: Factory, elsewhere: Run) -> None:
    claims = claim_each(session_factory, NEW, one_per=[Job.weight], order_by=Job.runs)
    with next(claims) as job:
        run(job)
        assert job.id == 1
    # Another session inserts a row that sorts before the rows already read.
    elsewhere(sa.insert(Job).values(id=0, state="new", weight=98, runs=-1))
    keys = []
    for claim in claims:
        with claim as job:
            run(job)
            keys.append(job.id)
    assert sorted(keys) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [key for key in keys if key in (0, 2, 6, 10)] == [0, 2, 6, 10]


def test_a_row_that_failed_has_had_its_turn(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, one_per=Job.weight, on_error="collect")
    keys = []
    for claim in claims:
        with claim as job:
            keys.append(job.id)
            run(job)
            assert job.id not in (1, 2)
    assert sorted(keys) == list(range(1, 11))
    assert sorted(failed.key for failed in claims.report.failed) == [1, 2]
    assert claims.report.processed == 8
    assert worked(session_factory) == [1, 2]


@pytest.mark.not_databases("sqlite")
def test_the_next_does_not_overtake_a_first_row_that_another_transaction_holds(
    session: LockingSession, session_factory: Factory
) -> None:
    session.get_one_entity(Job, 1, LockOptions.ForUpdate)
    claims = claim_each(session_factory, NEW, one_per=Job.weight)
    keys = []
    for claim in claims:
        with claim as job:
            run(job)
            keys.append(job.id)
    assert keys == [2, 3, 4, 6, 7, 8, 10]
    assert claims.report.skipped == 3
    session.rollback()
    assert worked(session_factory, lock_timeout=5) == [1, 5, 9]


@in_a_loop
async def test_it_is_awaited(documents: Database) -> None:
    async with factory(documents) as make:
        keys = []
        async for claim in async_claim_each(make, NEW, one_per=Job.weight):
            async with claim as job:
                run(job)
                keys.append(job.id)
    assert sorted(keys) == list(range(1, 11))


@pytest.mark.databases("sqlite")
def test_what_it_refuses(session_factory: Factory) -> None:
    with pytest.raises(ValueError, match="leave out batch"):
        claim_each(session_factory, NEW, one_per=Job.weight, batch=2)
    with pytest.raises(TypeError, match="one_per must be a column"):
        claim_each(session_factory, NEW, one_per="weight")


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
def test_four_processes_and_one_that_dies(
    documents: Database, session_factory: Factory, elsewhere: Run
) -> None:
    ids = range(1, GROUPS * EACH + 1)
    rows = [{"id": n, "state": "new", "weight": n % GROUPS, "runs": 0} for n in ids]
    steps = [{"id": n, "job_id": 1, "done": False} for n in range(GROUPS)]
    elsewhere(sa.delete(Step), sa.delete(Job), sa.insert(Job).values(rows))
    elsewhere(sa.insert(Step).values(steps))
    with started(documents, "victim", "ann", "ben", "cat", ordered=True) as (victim, *others):
        victim.tell()
        assert victim.next_line() == "inside 1"
        for other in others:
            other.tell()
        if documents.name != "sqlite":  # no other worker runs beside the victim
            assert others[0].next_line().startswith("working on ")
        victim.kill()
        for other in others:
            assert other.end() == 0
    order = [ident for (ident,) in elsewhere(sa.select(Log.job_id).order_by(Log.id))]
    assert len(order) == len(set(order))

    def with_those_before(idents: Iterable[int]) -> list[int]:
        one_more = {n: [-n] for n in idents if has_one_before(n, documents.name)}
        return [one for n in idents for one in (n, *one_more.get(n, ()))]

    for group in range(GROUPS):
        of_group = [ident for ident in order if abs(ident) % GROUPS == group]
        assert of_group == with_those_before(sorted(n for n in of_group if n > 0))
    left = worked(session_factory, lock_timeout=20)
    assert {*order, *left, *with_those_before(left)} == {*with_those_before(ids)}


def test_a_row_that_moves_to_another_value_comes_up_once(session_factory: Factory) -> None:
    keys = []
    for claim in claim_each(session_factory, NEW, one_per=Job.weight):
        with claim as job:
            keys.append(job.id)
            if job.id == 1:
                job.weight = 98  # it still matches
            else:
                run(job)
    assert sorted(keys) == list(range(1, 11))


# --------------------------------------------------------------------------------------------------
# The recipe of docs/claiming.md for N simultaneous claims of rows with the same value.

SLOTS, WORKERS = 2, 6


@pytest.fixture(scope="module")
def slot_of() -> Callable[..., bool]:
    """Return the function from the documentation page."""
    (code,) = re.findall(
        r"^def slot_of.*?(?=\n\n\n)", text_of("docs/claiming.md"), re.DOTALL | re.MULTILINE
    )
    found: dict[str, Any] = {"LockNotAvailable": LockNotAvailable, "doclock_key": doclock_key}
    exec(code, found)
    function: Callable[..., bool] = found["slot_of"]
    return function


@pytest.mark.not_databases("sqlite")
def test_a_slot_is_free_again_with_its_transaction(
    session_factory: sessionmaker[LockingSession], slot_of: Callable[..., bool]
) -> None:
    with session_factory() as one, session_factory() as two, session_factory() as three:
        for session, taken in ((one, True), (two, True), (three, False)):
            assert slot_of(session, "a", SLOTS) is taken
        assert slot_of(three, "b", SLOTS)
        one.rollback()
        assert slot_of(three, "a", SLOTS)


@pytest.mark.not_databases("sqlite")
def test_no_more_are_at_work_and_all_is_done(
    session_factory: sessionmaker[LockingSession],
    slot_of: Callable[..., bool],
    elsewhere: Callable[..., list[Any]],
) -> None:
    mutex, at_work = threading.Lock(), Counter[int]()
    most, given_back = Counter[int](), threading.Event()
    both_work = threading.Barrier(SLOTS)

    def work() -> None:
        while elsewhere(sa.select(Job.id).where(Job.state == "new")):
            for claim in claim_each(session_factory, NEW):
                with claim as job:
                    if not slot_of(claim.session, job.weight, SLOTS):
                        claim.session.rollback()
                        given_back.set()
                        continue
                    weight = job.weight
                    with mutex:
                        at_work[weight] += 1
                        most[weight] = max(most[weight], at_work[weight])
                        first = job.weight == 99 and not given_back.is_set()
                    if first:
                        both_work.wait(PATIENCE)
                        assert given_back.wait(PATIENCE)  # by the worker that finds no slot
                    run(job)
                    with mutex:
                        at_work[weight] -= 1

    with ThreadPoolExecutor(WORKERS) as threads:
        for one in [threads.submit(work) for _ in range(WORKERS)]:
            one.result(PATIENCE)
    assert max(most.values()) == SLOTS
    assert {*elsewhere(sa.select(Job.runs))} == {(1,)}


# --------------------------------------------------------------------------------------------------
# Two workers of an ordered queue get different rows with the index of docs/claiming.md.
#
# Without it InnoDB and SQL Server lock what the sort reads; the second worker gets nothing, and the plan says why.


class Base(DeclarativeBase):
    """The table of this file."""


class Errand(Base):
    """A row of the queue."""

    __tablename__ = "qi_errand"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(sa.String(20))
    priority: Mapped[int]
    note: Mapped[str] = mapped_column(sa.String(20), default="-")


QUEUE = sa.Index("qi_queue", Errand.state, Errand.priority)
#: Words of a plan that sorts, by database; not tried on SQL Server.
SORTS = {"postgresql": "Sort", "mysql": "Sort:", "mariadb": "filesort"}


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def indexed(request: pytest.FixtureRequest, engine: sa.Engine, database: Database) -> bool:
    """Create the table, with or without the index."""
    database.create(Base.metadata)
    with engine.begin() as connection:
        if not request.param:
            QUEUE.drop(connection)
        rows = [
            {"id": number, "state": "new" if number % 50 == 0 else "done", "priority": -number}
            for number in range(1, 1_001)
        ]
        connection.execute(sa.insert(Errand), rows)
    if database.name in ("postgresql", "mysql", "mariadb"):
        words = "ANALYZE" if database.name == "postgresql" else "ANALYZE TABLE"
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"{words} qi_errand").close()
    found: bool = request.param
    return found


def _first_free(session: LockingSession) -> int | None:
    queue = session.entity_set(Errand, LockOptions.ForUpdate | LockOptions.SkipLocked)
    found = session.scalars(queue.where(Errand.state == "new").order_by(Errand.priority).limit(1))
    return next((one.id for one in found), None)


def _plan(engine: sa.Engine) -> str:
    by_priority: Any = (
        sa.select(Errand).where(Errand.state == "new").order_by(Errand.priority).limit(1)
    )
    sql = str(
        by_priority.with_for_update(skip_locked=True).compile(
            engine, compile_kwargs={"literal_binds": True}
        )
    )
    with engine.connect() as connection:
        return "\n".join(str(tuple(row)) for row in connection.exec_driver_sql(f"EXPLAIN {sql}"))


@pytest.mark.databases("postgresql", "mysql", "mariadb", "mssql")
@pytest.mark.read_committed
def test_two_workers(
    session: LockingSession,
    other: LockingSession,
    engine: sa.Engine,
    database: Database,
    *,
    indexed: bool,
) -> None:
    first, second = _first_free(session), _first_free(other)
    assert first == 1_000
    gets_nothing = not indexed and database.name != "postgresql"
    assert second == (None if gets_nothing else 950)
    if database.name in SORTS:
        assert (SORTS[database.name] in _plan(engine)) is not indexed
