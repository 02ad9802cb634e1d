"""lock_timeout means the same wherever it is given: the seconds to queue behind another session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, with_lock
from tests.integration.locking.expectations import READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.steps import add_ten, reads, recorded, save
from tests.integration.timeouts.ways import SHORT, WAYS, given_up, hold
from tests.support.actors import Actor
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
Session = LockingSession


def test_what_is_held_is_given_up_when_they_are_over(session: Session, other: Session) -> None:
    hold(other)
    for name, way in WAYS.items():
        error = given_up(session, way, lock_timeout=SHORT)
        assert f"not granted within {SHORT:g} s" in str(error), name
        assert error.waited >= SHORT, name
        assert error.lock is ForUpdate, name


def test_zero_does_not_wait(session: Session, other: Session) -> None:
    hold(other)
    for name, way in WAYS.items():
        error = given_up(session, way, lock_timeout=0)
        assert "held by another transaction" in str(error), name
        assert error.lock is ForUpdate | NoWait, name


@on(READER_AFTER_WRITER, WAITS)
def test_it_is_the_same_for_readers(session: Session, other: Session) -> None:
    hold(other)
    for name, way in WAYS.items():
        error = given_up(session, way, lock=SharedRead, lock_timeout=SHORT)
        assert " SHARED READ on " in str(error), name
        assert f"not granted within {SHORT:g} s" in str(error), name


def test_it_is_the_same_as_timedelta_or_however_small(session: Session, other: Session) -> None:
    hold(other)
    for seconds in (timedelta(milliseconds=50), 0.0001, 1e-9, timedelta(microseconds=1)):
        for way in (WAYS["get_entity"], WAYS["entity_set"]):
            assert "not granted within" in str(given_up(session, way, lock_timeout=seconds))


def test_however_small_it_is_granted_what_is_free(session: Session) -> None:
    for seconds in (0.001, 1e-9, 1.0000001, 0.9999, 2, 1e9, timedelta.max):
        for name, way in WAYS.items():
            way(session, lock_timeout=seconds)
            if name != "locked":
                assert session.held_locks, (name, seconds)
            session.rollback()


def test_what_comes_free_in_time_is_granted(alice: Actor[Session], bob: Actor[Session]) -> None:
    for way in WAYS.values():
        alice.does(hold)
        queued = bob.starts(partial(way, lock_timeout=29.5))
        wait_until_blocked(waiter=bob, holder=alice, step=queued)
        alice.does(lambda session: session.rollback())
        queued.result()
        bob.does(lambda session: session.rollback())


def test_whole_seconds_are_waited_for_as_well(alice: Actor[Session], bob: Actor[Session]) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads(lock_timeout=29))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == (40, [20, 20])


@pytest.mark.read_committed
def test_it_counts_in_the_callers_transaction_too(session: Session, other: Session) -> None:
    hold(other)
    for way in WAYS.values():
        with session.begin():
            session.connection()
            assert "not granted within" in str(given_up(session, way, lock_timeout=SHORT))
            session.rollback()


def test_a_limit_that_was_not_reached_is_forgotten(
    session: Session, other: Session, make_session: Callable[..., Session]
) -> None:
    assert reads(lock_timeout=5)(session) == (30, [10, 20])
    session.rollback()
    hold(other)
    impatient = make_session()
    for limit in (0.3, 0.03):  # two statements, not one with the first limit in it
        assert f"within {limit:g} s" in str(
            given_up(impatient, WAYS["get_entity"], lock_timeout=limit)
        )


@pytest.mark.not_databases("sqlite")
def test_nobody_is_waited_for_who_holds_another_document(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    found: Any = session.get_one_entity(Order, 2, ForUpdate, lock_timeout=SHORT)
    assert found.total == 5
    statement = session.entity_set(Order, ForUpdate, lock_timeout=SHORT).where(Order.id == 2)
    assert session.scalars(statement).all() == [found]


# --------------------------------------------------------------------------------------------------
# LockingSession(lock_timeout=...) applies to every lock that can wait and sets no limit itself.


@pytest.fixture
def opened(engine: sa.Engine) -> Callable[..., Any]:
    """Return a maker of sessions that close themselves at the end."""

    @contextmanager
    def open_session(**options: Any) -> Iterator[Session]:
        with sessionmaker(engine, class_=LockingSession, **options)() as session:
            yield session

    return open_session


def by_statement(session: Session, lock: LockOptions = ForUpdate) -> Any:
    return session.execute(with_lock(sa.select(Order), lock)).all()


def know_the_server(session: Session) -> None:
    """Let an engine's first lock run its one-time queries: versions, and how a table is stored."""
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
