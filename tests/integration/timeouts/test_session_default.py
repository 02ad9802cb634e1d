"""LockingSession(lock_timeout=...): for every lock that may have to wait and says nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, with_lock
from tests.integration.locking.steps import recorded
from tests.integration.timeouts.ways import SHORT, WAYS, given_up, hold
from tests.support.models import Order

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
Session = LockingSession


@pytest.fixture
def opened(engine: sa.Engine) -> Callable[..., Any]:
    """Return a maker of sessions that take care of their end."""

    @contextmanager
    def open_session(**options: Any) -> Iterator[Session]:
        with sessionmaker(engine, class_=LockingSession, **options)() as session:
            yield session

    return open_session


def by_statement(session: Session, lock: LockOptions = ForUpdate) -> Any:
    return session.execute(with_lock(sa.select(Order), lock)).all()


def know_the_server(session: Session) -> None:
    """Let an engine's first lock ask what it asks once: versions, and how a table is stored."""
    WAYS["get_entity"](session)
    session.rollback()


EVERY_WAY = {**WAYS, "with_lock": by_statement}


@pytest.mark.parametrize("seconds", [SHORT, timedelta(seconds=SHORT)], ids=str)
def test_it_counts_for_every_way_to_lock(
    opened: Callable[..., Any], other: Session, seconds: Any
) -> None:
    hold(other)
    with opened(lock_timeout=seconds) as session:
        for name, way in EVERY_WAY.items():
            assert f"not granted within {SHORT:g} s" in str(given_up(session, way)), name


def test_zero_is_nowait_for_all(opened: Callable[..., Any], other: Session) -> None:
    hold(other)
    with opened(lock_timeout=0) as session:
        for name, way in EVERY_WAY.items():
            error = given_up(session, way)
            assert "held by another transaction" in str(error), name
            assert error.lock is ForUpdate | NoWait, name


def test_what_the_call_says_counts_more(opened: Callable[..., Any], other: Session) -> None:
    hold(other)
    with opened(lock_timeout=29) as session:
        for name, way in WAYS.items():
            assert "within 0.05 s" in str(given_up(session, way, lock_timeout=SHORT)), name
            assert "held by another" in str(given_up(session, way, lock_timeout=0)), name
    with opened(lock_timeout=0) as session:
        assert "within 0.05 s" in str(given_up(session, WAYS["entity_set"], lock_timeout=SHORT))


def test_what_never_waits_takes_no_notice(engine: sa.Engine, opened: Callable[..., Any]) -> None:
    said: dict[float | None, list[str]] = {}
    snapshot = LockOptions.SnapshotRead
    locks = [LockOptions.None_, LockOptions.NoLock, snapshot, ForUpdate | NoWait]
    if engine.dialect.name != "sqlite":
        locks.append(ForUpdate | LockOptions.SkipLocked)
    for seconds in (None, 5.5, 0):
        with opened(lock_timeout=seconds) as session:
            know_the_server(session)
            with recorded(engine) as statements:
                for lock in locks:
                    assert len(session.get_entities(Order, [1, 2], lock)) == 2
                    session.rollback()
                    assert len(by_statement(session, lock)) == 2
                    session.rollback()
            said[seconds] = statements
    assert said[5.5] == said[0] == said[None]


def test_it_is_in_the_text_like_that_of_the_call(
    engine: sa.Engine, opened: Callable[..., Any]
) -> None:
    with opened() as session:
        know_the_server(session)
    with opened() as session, recorded(engine) as by_call:
        WAYS["get_entity"](session, lock_timeout=5.5)
        WAYS["entity_set"](session, lock_timeout=5.5)
    with opened(lock_timeout=5.5) as session, recorded(engine) as by_session:
        WAYS["get_entity"](session)
        WAYS["entity_set"](session)
    assert by_session == by_call


def test_one_session_of_a_maker_can_have_another(engine: sa.Engine, other: Session) -> None:
    make = sessionmaker(engine, class_=LockingSession, lock_timeout=29)
    hold(other)
    with make(lock_timeout=SHORT) as session:
        assert "within 0.05 s" in str(given_up(session, WAYS["get_entity"]))
    with make(lock_timeout=None) as session:
        session.get_entity(Order, 1)
