"""SQLite locks the file: one works at a time, whatever row it is of; and that is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each
from tests.integration.claims.jobs import NEW, Job, run

Factory = sessionmaker[LockingSession]
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
