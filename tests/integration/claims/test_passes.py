"""Keys are read page by page, whatever their number; each comes up once a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import pytest
import sqlalchemy as sa

from sa_doclock.claims.candidates import Candidates, _backoff
from sa_doclock.claims.query import ClaimQuery
from sa_doclock.claims.report import ClaimReport, ReportBuilder
from tests.integration.claims.jobs import Base, Job, Parcel

Identity = tuple[Any, ...]


class Table:
    """Jobs in memory, and what was read of them."""

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
