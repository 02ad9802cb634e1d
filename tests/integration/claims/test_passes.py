"""Keys are read page by page, however many there are; each is claimed once per pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import finalize

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each
from sa_doclock.claims.candidates import Candidates, _backoff
from sa_doclock.claims.query import ClaimQuery
from sa_doclock.claims.report import ClaimReport, ReportBuilder
from tests.integration.claims.jobs import NEW, STATES, Base, Job, Parcel, run

Identity = tuple[Any, ...]


class Table:
    """Jobs in memory, and a record of the reads."""

    def __init__(self, entity: Any = Job, order_by: Any = None, **how: Any) -> None:
        self.engine = sa.create_engine("sqlite://")
        finalize(self, self.engine.dispose)
        Base.metadata.create_all(self.engine)
        self.reads: list[int] = []
        self.report = ClaimReport()
        self.builder = ReportBuilder(self.report, remembers=bool(how.get("until_empty")))
        how = {"page": 4, "until_empty": False, "attempts": 3, "sleep": lambda _: None, **how}
        self.candidates = Candidates(
            ClaimQuery(sa.select(entity), order_by), self.read, self.builder, **how
        )

    def insert(self, entity: Any, *rows: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.insert(entity), list(rows))

    def read(self, statement: sa.Select[Any]) -> Sequence[Identity]:
        with self.engine.connect() as connection:
            rows = [tuple(row) for row in connection.execute(statement)]
        self.reads.append(len(rows))
        return rows

    def all(self, then: Any = lambda _: None) -> list[Identity]:
        found: list[Identity] = []
        while keys := self.candidates.take(1):
            found += keys
            then(keys)
        self.engine.dispose()
        return found

    def delete(self, keys: Sequence[Identity]) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.delete(Job).where(Job.id.in_([key[0] for key in keys])))


def jobs(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "state": "new", "weight": -n, "runs": 0} for n in range(1, count + 1)]


@pytest.mark.parametrize("order_by", [None, Job.weight])
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5, 19])
def test_each_key_comes_up_once(order_by: Any, deletes: bool, count: int) -> None:
    table = Table(order_by=order_by)
    table.insert(Job, *jobs(count))
    found = table.all(table.delete if deletes else lambda _: None)
    expected = [(n,) for n in range(1, count + 1)]
    assert found == (expected if order_by is None else expected[::-1])


def test_a_page_begins_behind_the_one_before() -> None:
    table = Table()
    table.insert(Job, *jobs(10))
    table.all()
    assert table.reads == [4, 4, 2]


def test_in_another_order_no_more_is_read_than_is_in_front() -> None:
    table = Table(order_by=Job.weight)
    table.insert(Job, *jobs(10))
    table.all(table.delete)
    assert table.reads == [4, 4, 2]


def test_composite_keys_have_an_order_too() -> None:
    rows = [{"year": y, "number": n, "state": "new"} for y in (1, 2, 3) for n in (1, 2, 3)]
    table = Table(Parcel)
    table.insert(Parcel, *rows)
    assert table.all() == [(row["year"], row["number"]) for row in rows]


@pytest.mark.parametrize("order_by", [None, Job.weight])
def test_what_is_settled_does_not_come_up_in_the_next_pass(order_by: Any) -> None:
    table = Table(order_by=order_by, until_empty=True)
    table.insert(Job, *jobs(9))
    assert len(table.all(table.builder.processed)) == 9
    assert table.builder.report.passes == 2


def test_what_nobody_can_claim_comes_up_in_some_passes_and_then_no_more() -> None:
    naps: list[float] = []
    table = Table(until_empty=True, sleep=naps.append)
    table.insert(Job, *jobs(2))
    assert table.all(table.builder.skipped) == [(1,), (2,)] * 3
    assert len(naps) == 2
    assert table.builder.report.skipped == 2


def test_what_is_gone_every_time_is_counted_once() -> None:
    table = Table(until_empty=True)
    table.insert(Job, *jobs(2))
    table.all(table.builder.no_longer_matching)
    assert (table.builder.report.no_longer_matching, table.builder.report.passes) == (2, 3)


def test_what_is_put_back_comes_up_next() -> None:
    table = Table()
    table.insert(Job, *jobs(5))
    assert table.candidates.take(3) == [(1,), (2,), (3,)]
    table.candidates.requeue([(2,), (3,)])
    assert table.all() == [(2,), (3,), (4,), (5,)]


def test_a_rest_is_longer_each_time_up_to_a_limit() -> None:
    for attempt, most in ((1, 0.1), (2, 0.2), (3, 0.4), (5, 1.6), (6, 2), (1000, 2)):
        rests = [_backoff(attempt) for _ in range(50)]
        assert 0 <= min(rests) < max(rests) <= most


@pytest.mark.parametrize("order_by", [None, Job.weight])
def test_who_meets_others_does_not_ask_for_each_row(order_by: Any) -> None:
    table = Table(page=100, order_by=order_by)
    table.insert(Job, *jobs(60))
    asked = []

    def all_but_two_are_done(keys: list[Identity]) -> None:
        asked.extend(keys)
        if len(asked) == 1:
            table.delete([(n,) for n in range(1, 61) if n not in (30, 50)])
        table.candidates.note_try(claimed=keys in ([(30,)], [(50,)]))

    table.all(all_but_two_are_done)
    assert sorted(asked[3:]) == [(30,), (50,)]
    assert table.reads == [60, 2]
    assert table.builder.report.no_longer_matching == 60 - 5


def test_who_meets_others_goes_elsewhere_unless_there_is_an_order() -> None:
    found = {}
    for order_by in (None, -Job.weight):
        table = Table(page=100, order_by=order_by)
        table.insert(Job, *jobs(90))
        found[order_by is None] = table.all(lambda _: table.candidates.note_try(claimed=False))  # noqa: B023
    assert found[False] == [(n,) for n in range(1, 91)]
    assert found[True] != found[False]
    assert sorted(found[True]) == found[False]
    assert found[True][:3] == found[False][:3]


# --------------------------------------------------------------------------------------------------
# Passes repeat until no work is left: they always end, and always pause in between.

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("batch", [1, 4])


class Naps(list[float]):
    """A sleep() that records the seconds, and then calls a function."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.then = then

    def __call__(self, seconds: float) -> None:
        self.append(seconds)
        self.then()


@both
def test_what_was_added_meanwhile_is_found(
    session_factory: Factory, elsewhere: Run, batch: int
) -> None:
    naps = Naps()
    keys = []
    claims = claim_each(session_factory, NEW, until_empty=True, batch=batch, sleep=naps)
    for claim in claims:
        with claim as job:
            run(job)
            keys.append(claim.key)
        if claim.key == 10:
            elsewhere(sa.insert(Job).values(id=0, state="new", weight=1))
    assert keys == [*range(1, 11), 0]
    assert claims.report.passes == 3
    assert naps == []


@both
@pytest.mark.parametrize("order_by", [None, Job.weight])
def test_a_row_that_still_matches_is_not_processed_twice(
    session_factory: Factory, elsewhere: Run, batch: int, order_by: Any
) -> None:
    naps = Naps()
    how: dict[str, Any] = {"until_empty": True, "batch": batch, "sleep": naps}
    claims = claim_each(session_factory, NEW, order_by=order_by, **how)
    for claim in claims:
        with claim as job:
            job.runs += 1
    assert elsewhere(sa.select(Job.runs).distinct()) == [(1,)]
    assert claims.report.processed == 10
    assert (claims.report.passes, naps) == (2, [])


@both
def test_a_row_that_fails_is_not_tried_again(session_factory: Factory, batch: int) -> None:
    naps, tried = Naps(), []
    how: dict[str, Any] = {"until_empty": True, "on_error": "collect", "batch": batch}
    claims = claim_each(session_factory, NEW, sleep=naps, **how)
    for claim in claims:
        with claim as job:
            tried.append(claim.key)
            run(job)
            if claim.key % 2:
                raise LookupError
    assert sorted(tried) == list(range(1, 11))
    assert [key for key, _ in claims.report.failed] == [1, 3, 5, 7, 9]
    assert naps == []


def test_a_row_that_is_not_entered_does_not_come_up_again(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, until_empty=True)
    assert [claim.key for claim in claims] == list(range(1, 11))
    assert claims.report.given_back == 10


@both
@pytest.mark.not_databases("sqlite")
def test_what_others_hold_all_the_time_is_given_up_after_some_rests(
    session_factory: Factory, other: LockingSession, batch: int
) -> None:
    other.get_one_entity(Job, 2, LockOptions.ForUpdate)
    naps = Naps()
    how: dict[str, Any] = {"until_empty": True, "attempts": 4, "batch": batch}
    claims = claim_each(session_factory, NEW, sleep=naps, **how)
    for claim in claims:
        with claim as job:
            run(job)
    report = claims.report
    assert (report.processed, report.skipped, report.no_longer_matching) == (9, 1, 0)
    assert claims.report.passes == 1 + 4
    assert len(naps) == 3
    assert all(0 <= nap <= 0.1 * 2**n for n, nap in enumerate(naps))


@both
@pytest.mark.not_databases("sqlite")
def test_what_others_let_go_of_meanwhile_is_processed(
    session_factory: Factory, other: LockingSession, elsewhere: Run, batch: int
) -> None:
    other.get_one_entity(Job, 2, LockOptions.ForUpdate)
    naps = Naps(other.rollback)
    claims = claim_each(session_factory, NEW, until_empty=True, sleep=naps, batch=batch)
    for claim in claims:
        with claim as job:
            run(job)
    assert len(naps) == 1
    assert (claims.report.processed, claims.report.skipped) == (10, 0)
    assert {state for _, state in elsewhere(STATES)} == {"done"}


@pytest.mark.not_databases("sqlite")
def test_what_others_held_and_have_processed_is_gone_and_not_skipped(
    session_factory: Factory, other: LockingSession
) -> None:
    run(other.get_one_entity(Job, 2, LockOptions.ForUpdate))
    claims = claim_each(session_factory, NEW, until_empty=True, sleep=Naps(other.commit))
    for claim in claims:
        with claim as job:
            run(job)
    report = claims.report
    assert (report.processed, report.skipped, report.no_longer_matching) == (9, 0, 1)


def test_a_limit_ends_it(session_factory: Factory) -> None:
    claims = claim_each(session_factory, NEW, until_empty=True, limit=3)
    assert [claim.key for claim in claims] == [1, 2, 3]


def test_nothing_to_do_is_one_read(session_factory: Factory) -> None:
    naps = Naps()
    claims = claim_each(session_factory, NEW.where(Job.weight < 0), until_empty=True, sleep=naps)
    assert list(claims) == []
    assert (claims.report.passes, naps) == (1, [])


# --------------------------------------------------------------------------------------------------
# SQLite locks the file: one worker runs at a time, whichever row it has. Report and log say so.

on_sqlite = pytest.mark.databases("sqlite")


def work(factory: Factory, **how: Any) -> Any:
    claims = claim_each(factory, NEW, **how)
    for claim in claims:
        with claim as job:
            run(job)
    return claims.report


def test_the_report_tells_where_it_is_so(session_factory: Factory, engine: sa.Engine) -> None:
    claims = claim_each(session_factory, NEW)
    assert not claims.report.serialised
    next(claims)
    assert claims.report.serialised is (engine.dialect.name == "sqlite")


def test_the_log_tells_it_once(
    session_factory: Factory, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sa_doclock"):
        work(session_factory, until_empty=True)
    reported = [
        record.message for record in caplog.records if "without row locks" in record.message
    ]
    assert len(reported) == (engine.dialect.name == "sqlite")


@on_sqlite
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("seconds", [0, 0.01])
def test_lock_timeout_is_for_the_file(
    session_factory: Factory, other: LockingSession, seconds: float, batch: int
) -> None:
    other.get_one_entity(Job, 10, LockOptions.ForUpdate)
    report = work(session_factory, lock_timeout=seconds, batch=batch)
    assert (report.processed, report.skipped, report.failed) == (0, 10, [])


@on_sqlite
def test_without_one_the_connections_own_limit_counts(
    make_engine: Callable[..., sa.Engine], other: LockingSession
) -> None:
    other.get_one_entity(Job, 10, LockOptions.ForUpdate)
    impatient = sessionmaker(make_engine(connect_args={"timeout": 0}), class_=LockingSession)
    assert work(impatient).skipped == 10
    other.rollback()
    assert work(impatient).processed == 10


@on_sqlite
def test_others_can_read_what_there_is_to_do_meanwhile(
    session_factory: Factory, other: LockingSession
) -> None:
    other.get_one_entity(Job, 10, LockOptions.ForUpdate)
    claims = claim_each(session_factory, NEW, until_empty=True, lock_timeout=0, attempts=1)
    assert list(claims) == []
    assert claims.report.skipped == 10


@on_sqlite
def test_without_one_the_sessions_own_limit_counts(
    engine: sa.Engine, other: LockingSession
) -> None:
    other.get_one_entity(Job, 10, LockOptions.ForUpdate)
    impatient = sessionmaker(engine, class_=LockingSession, lock_timeout=0)
    assert work(impatient).skipped == 10


@pytest.mark.not_databases("sqlite")
def test_elsewhere_a_limit_of_the_session_makes_nobody_queue(
    engine: sa.Engine, other: LockingSession
) -> None:
    other.get_one_entity(Job, 10, LockOptions.ForUpdate)
    patient = sessionmaker(engine, class_=LockingSession, lock_timeout=60, priority="batch")
    report = work(patient)
    assert (report.processed, report.skipped) == (9, 1)
