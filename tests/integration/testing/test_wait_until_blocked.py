"""wait_until_blocked() of the test kit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DocumentGate, LockingSession, LockOptions, claim_each
from sa_doclock.testing import wait_until_blocked
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate


def test_it_returns_when_the_waiter_waits(session: LockingSession, other: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(lambda: other.get_one_entity(Order, 1, ForUpdate).total)
        try:
            wait_until_blocked(other, session, step=step)
            assert not step.done()
        finally:
            session.commit()
        assert step.result(10) == 31
        pool.submit(other.close).result()


@pytest.mark.not_databases("sqlite")
def test_connections_that_wait(engine: sa.Engine) -> None:
    change = sa.update(Order).where(Order.id == 1).values(total=31)
    with (
        engine.connect() as first,
        engine.connect() as second,
        engine.connect() as third,
        ThreadPoolExecutor(2) as pool,
    ):
        first.execute(change)
        step = pool.submit(second.execute, change)
        try:
            wait_until_blocked(second, first)
            wait_until_blocked(second)
            behind = pool.submit(third.execute, change)
            wait_until_blocked(third, first, step=behind)
            with pytest.raises(AssertionError, match="did not wait for the holder within"):
                wait_until_blocked(second, third, timeout=0.1)
        finally:
            first.rollback()
        step.result(10)
        second.rollback()
        behind.result(10)


def test_a_waiter_that_does_not_wait(session: LockingSession, other: LockingSession) -> None:
    session.get_one(Order, 1)
    with pytest.raises(AssertionError, match=r"did not wait for the holder within 0\.05 s"):
        wait_until_blocked(session, other, timeout=0.05)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(lambda: None)
        step.result(10)
        with pytest.raises(AssertionError, match="its step has ended"):
            wait_until_blocked(session, other, step=step)


def by_key(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)


def entity_set(session: LockingSession) -> None:
    session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 1)).all()


def adopted(session: LockingSession) -> None:
    session.scalars(sa.select(Order).where(Order.id == 1).with_for_update()).one()


def adopted_by_get(session: LockingSession) -> None:
    session.get_one(Order, 1, with_for_update=True)


def adopted_by_refresh(session: LockingSession) -> None:
    session.refresh(session.get_one(Order, 1), with_for_update=True)


def named(session: LockingSession) -> None:
    session.lock_key("order:1")


def flush(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 99
    session.flush()


def commit(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 99
    session.commit()


def statement(session: LockingSession) -> None:
    session.execute(sa.update(Order).where(Order.id == 1).values(total=99))


def text(session: LockingSession) -> None:
    session.execute(sa.text("UPDATE lk_order SET total = total WHERE id = 1"))


def of_connection(session: LockingSession) -> None:
    session.connection().execute(sa.update(Order).where(Order.id == 1).values(total=99))


WAYS = [
    by_key,
    entity_set,
    adopted,
    adopted_by_get,
    adopted_by_refresh,
    named,
    flush,
    commit,
    statement,
    text,
    of_connection,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda one: one.__name__)
def test_a_session_waits_in_whatever_way_it_asks(
    session: LockingSession, other: LockingSession, way: Callable[[LockingSession], None]
) -> None:
    session.lock_key("order:1")
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.flush()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(way, other)
        try:
            wait_until_blocked(other, session, step=step)
            wait_until_blocked(other, step=step)
            assert not step.done()
        finally:
            session.rollback()
        step.result(10)
        pool.submit(other.close).result()


@pytest.mark.databases("sqlite")  # elsewhere a claim skips locked rows
def test_a_claim_waits_for_the_file(session: LockingSession, other: LockingSession) -> None:
    def claim() -> None:
        for one in claim_each(lambda: other, sa.select(Order).where(Order.id == 1)):
            with one:
                pass

    session.get_one_entity(Order, 2, ForUpdate)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(claim)
        try:
            wait_until_blocked(other, session, step=step)
        finally:
            session.rollback()
        step.result(10)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("locks", [adopted, flush], ids=lambda one: one.__name__)
def test_a_connection_to_sqlite_that_waits(
    session: LockingSession, engine: sa.Engine, locks: Callable[[LockingSession], None]
) -> None:
    locks(session)
    with engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        step = pool.submit(connection.execute, sa.update(Order).values(total=0))
        try:
            wait_until_blocked(connection, session, step=step)
        finally:
            session.rollback()
        pool.submit(step.result(10).connection.rollback).result()


class Held:
    """An SQL function that runs until the test lets it end."""

    def __init__(self, session: LockingSession) -> None:
        self.begun, self.end = threading.Event(), threading.Event()
        connection = session.connection().connection.driver_connection
        connection.create_function("held", 1, self)  # type: ignore[union-attr]

    def __call__(self, value: int) -> int:
        self.begun.set()
        assert self.end.wait(10)
        return value


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("sql", "holds"),
    [
        ("SELECT held(total) FROM lk_order WHERE id = 1", True),
        ("UPDATE lk_order SET total = held(total) WHERE id = 1", False),
    ],
    ids=["a read", "a write under its own lock"],
)
def test_a_statement_that_takes_long_does_not_wait(
    session: LockingSession, other: LockingSession, sql: str, *, holds: bool
) -> None:
    held = Held(other)
    if holds:
        by_key(session)
    else:
        session.get_one(Order, 1)
        by_key(other)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(other.execute, sa.text(sql))
        assert held.begun.wait(10)
        try:
            for holder in (session, None):
                with pytest.raises(AssertionError, match="did not wait for the holder within"):
                    wait_until_blocked(other, holder, step=step, timeout=0.05)
        finally:
            held.end.set()
        step.result(10)


@pytest.mark.databases("sqlite")
def test_a_session_that_has_no_lock_is_no_holder(
    session: LockingSession, other: LockingSession, engine: sa.Engine
) -> None:
    by_key(session)
    session.commit()
    session.get_one_entity(Order, 1, LockOptions.SharedRead)  # in a transaction again
    with engine.connect() as third, ThreadPoolExecutor(1) as pool:
        third.exec_driver_sql("BEGIN IMMEDIATE")
        step = pool.submit(by_key, other)
        try:
            wait_until_blocked(other, third, step=step)
            with pytest.raises(AssertionError, match="did not wait for the holder within"):
                wait_until_blocked(other, session, step=step, timeout=0.05)
        finally:
            third.rollback()
        step.result(10)
        pool.submit(other.close).result()


def test_a_session_that_waits_at_a_gate(engine: sa.Engine) -> None:
    gate = DocumentGate(next_waits_at_server=False)
    make = sessionmaker(engine, class_=LockingSession, gate=gate)
    with make() as holder, make() as waiter, make() as stranger, ThreadPoolExecutor(1) as pool:
        by_key(holder)
        step = pool.submit(by_key, waiter)
        try:
            wait_until_blocked(waiter, holder, step=step)
            wait_until_blocked(waiter, step=step)
            assert waiter.held_locks == {}
            for other in (stranger, LockingSession(engine)):
                with pytest.raises(AssertionError, match="did not wait for the holder within"):
                    wait_until_blocked(waiter, other, step=step, timeout=0.05)
        finally:
            holder.rollback()
        step.result(10)
        pool.submit(waiter.close).result()


@pytest.mark.databases("sqlite")
def test_what_is_neither_session_nor_connection(engine: sa.Engine, session: LockingSession) -> None:
    wait: Callable[..., Any] = wait_until_blocked
    for arguments in ((engine, session), (session, 7)):
        with pytest.raises(TypeError, match="must be a LockingSession or a Connection"):
            wait(*arguments)
