"""Callers that all start at the same moment, each in a separate thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, DocumentGate, LockingSession, LockNotAvailable, LockOptions
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Account, Lease, Order, Voucher
from tests.support.waits import wait_until, wait_until_blocked

T = TypeVar("T")


def all_at_once(number: int, call: Callable[[], T]) -> list[T]:
    """Return the result of each call; raise the first error."""
    start = threading.Barrier(number)

    def begin() -> T:
        start.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(number) as threads:
        calls = [threads.submit(begin) for _ in range(number)]
        return [one.result(PATIENCE) for one in calls]


# --------------------------------------------------------------------------------------------------
# Twelve simultaneous callers create one missing row: one row, no error, at any isolation level.

CALLERS = 12
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


def add_one(session: LockingSession, entity: Any, ident: Any, **defaults: Any) -> bool:
    row, created = session.get_or_create_entity(
        entity, ident, defaults={"total": 0, **defaults}, lock_timeout=20
    )
    row.total += 1
    return created


@pytest.fixture(params=[None, *LEVELS])
def any_level(request: pytest.FixtureRequest, make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    """Return an engine at the server's default level, and one for each other level."""
    level = request.param
    options = {} if level is None else {"isolation_level": level}
    if level is not None and make_engine().dialect.name == "sqlite":
        pytest.skip("SQLite has one level")
    return make_engine(pool_size=CALLERS, **options)


@pytest.mark.parametrize(
    ("entity", "ident", "defaults"),
    [
        (Order, 7, {}),
        (Voucher, (2030, 7), {}),
        (Lease, 7, {"rent": 1}),
    ],
    ids=["plain", "composite", "joined"],
)
def test_one_row_and_no_error(
    any_level: sa.Engine, entity: Any, ident: Any, defaults: dict[str, Any]
) -> None:
    make = sessionmaker(any_level, class_=LockingSession)

    def call() -> bool:
        with make.begin() as session:
            return add_one(session, entity, ident, **defaults)

    assert sorted(all_at_once(CALLERS, call)) == [False] * 11 + [True]
    with make() as session:
        assert session.get_one(entity, ident).total == CALLERS


def test_after_a_write_and_through_a_gate(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]
) -> None:
    engine = make_engine(pool_size=CALLERS, **read_committed)
    make = sessionmaker(engine, class_=LockingSession, gate=DocumentGate())
    numbers = itertools.count(100)

    def call() -> bool:
        with make.begin() as session:
            session.add(Account(id=next(numbers), total=0))
            session.flush()
            return add_one(session, Order, 7)

    assert sum(all_at_once(CALLERS, call)) == 1
    with make() as session:
        assert session.get_one(Order, 7).total == CALLERS
        assert session.query(Account).where(Account.id >= 100).count() == CALLERS


def test_callers_go_on_where_the_first_four_roll_back(
    any_level: sa.Engine,
) -> None:
    make = sessionmaker(any_level, class_=LockingSession)
    undone = itertools.count()

    def call() -> bool:
        with make() as session:
            created = add_one(session, Order, 7)
            if created and next(undone) < 4:
                session.rollback()
            else:
                session.commit()
            return created

    assert sum(all_at_once(CALLERS, call)) == 5
    with make() as session:
        assert session.get_one(Order, 7).total == CALLERS - 4


Enter = Callable[[str], Actor[LockingSession]]


@pytest.mark.read_committed
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_waits_and_keeps_what_it_has_written(
    alice: Actor[LockingSession], bob: Actor[LockingSession], *, commits: bool
) -> None:
    def write_and_ask(session: LockingSession) -> tuple[bool, int]:
        session.get_one_entity(Order, 2, LockOptions.ForUpdate).total = 6
        row, created = session.get_or_create_entity(Order, 7, defaults={"total": 20})
        row.total += 1
        session.commit()
        return created, row.total

    alice.does(lambda session: add_one(session, Order, 7))
    asked = bob.starts(write_and_ask)
    wait_until_blocked(waiter=bob, holder=alice, step=asked)
    alice.does(lambda session: session.commit() if commits else session.rollback())
    assert asked.result() == ((False, 2) if commits else (True, 21))
    assert bob.does(lambda session: session.get_one(Order, 2).total) == 6


@pytest.mark.parametrize(
    "how", [{"lock_timeout": 0.2}, {"lock": LockOptions.ForUpdate | LockOptions.NoWait}]
)
def test_an_insert_that_waits_too_long_names_the_row(
    alice: Actor[LockingSession], bob: Actor[LockingSession], how: dict[str, Any]
) -> None:
    alice.does(lambda session: add_one(session, Order, 7))
    with pytest.raises(LockNotAvailable, match="Order 7 FOR UPDATE") as caught:
        bob.does(
            lambda session: session.get_or_create_entity(Order, 7, defaults={"total": 0}, **how)
        )
    assert (caught.value.entity, caught.value.ident) == (Order, 7)
    assert not bob.does(lambda session: session.in_transaction())
    alice.does(lambda session: session.commit())
    limits = bob.does(lambda session: session.get_or_create_entity(Order, 7, **how)[1])
    assert limits is False


@pytest.mark.databases("postgresql")
def test_the_limit_of_the_insert_ends_with_it(session: LockingSession) -> None:
    session.get_or_create_entity(Order, 7, defaults={"total": 0}, lock_timeout=0.7)
    assert session.scalar(sa.text("SHOW lock_timeout")) == "0"


@pytest.mark.databases("mysql", "mariadb")
def test_the_name_is_free_before_the_transaction_ends(
    alice: Actor[LockingSession], bob: Actor[LockingSession], carol: Actor[LockingSession]
) -> None:
    # Otherwise carol would wait for the name, and the server sees no deadlock with a row.
    alice.does(lambda session: add_one(session, Order, 7))
    steps = {}
    for actor in (bob, carol):
        steps[actor] = actor.starts(lambda session: add_one(session, Order, 7))
        wait_until_blocked(waiter=actor, holder=alice, step=steps[actor])
    alice.does(lambda session: session.rollback())
    wait(steps.values(), PATIENCE, FIRST_COMPLETED)
    first, second = (bob, carol) if steps[bob].done() else (carol, bob)
    assert steps[first].result() is True
    first.does(lambda session: session.commit())
    assert steps[second].result() is False


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_rows_that_two_create_in_opposite_order_are_a_deadlock_that_the_server_sees(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(lambda session: add_one(session, Order, 7))
    bob.does(lambda session: add_one(session, Order, 8))
    steps = {alice: alice.starts(lambda session: add_one(session, Order, 8))}
    wait_until_blocked(waiter=alice, holder=bob, step=steps[alice])
    steps[bob] = bob.starts(lambda session: add_one(session, Order, 7))

    def has_failed(actor: Actor[LockingSession]) -> bool:
        return steps[actor].done() and isinstance(steps[actor].exception(), DeadlockDetected)

    wait_until(lambda: has_failed(alice) or has_failed(bob))  # the other may have ended before
    victim, other = (alice, bob) if has_failed(alice) else (bob, alice)
    victim.does(lambda session: session.rollback())
    assert steps[other].result() is True
