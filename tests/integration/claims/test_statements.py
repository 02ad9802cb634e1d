"""The valid statements: keys, hierarchies, joins, options, documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    aliased,
    contains_eager,
    load_only,
    selectinload,
    sessionmaker,
    with_loader_criteria,
)

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, claim_each
from tests.integration.claims.jobs import NEW, Base, Call, Item, Job, Log, Parcel, Step, Task, run
from tests.integration.locking.steps import finds_held

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
