"""Ten endpoints that add ten to an order's total and can lose an update, and ten that cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession, LockOptions, run_transaction
from sa_doclock.testing import two_at_once
from tests.support.models import Line, Order

pytestmark = [pytest.mark.own_logic, pytest.mark.read_committed]

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
FIRST = sa.select(Order).where(Order.id == 1)


@dataclass(frozen=True)
class Shop:
    """The program's sessions, and its cache."""

    locking: sessionmaker[LockingSession]
    plain: sessionmaker[Session]
    autocommit: sessionmaker[Session]
    cached_total: int


Endpoint = Callable[[Shop, int], Any]


def no_lock(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        order = session.get_one(Order, 1)
        order.total += 10
        session.commit()


def lock_after_the_read(shop: Shop, _line: int) -> None:
    with shop.plain() as session:
        order = session.get_one(Order, 1)
        session.scalars(FIRST.with_for_update()).one()  # the object keeps its state
        order.total += 10
        session.commit()


def lock_on_the_line(shop: Shop, line: int) -> None:
    with shop.plain() as session:
        locked = session.get_one(Line, line, with_for_update=True)
        order = session.get_one(Order, 1)
        locked.value += 10
        order.total += 10
        session.commit()


def committed_too_early(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        order = session.get_one_entity(Order, 1, ForUpdate)
        total = order.total
        session.commit()
        order.total = total + 10
        session.commit()


def two_sessions(shop: Shop, _line: int) -> None:
    with shop.locking() as reader:
        total = reader.get_one(Order, 1).total
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total = total + 10


def shared_read_then_write(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        order = session.get_one_entity(Order, 1, SharedRead)
        order.total += 10
        session.commit()


def cached_object(shop: Shop, _line: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total = shop.cached_total + 10


def autocommit(shop: Shop, _line: int) -> None:
    with shop.autocommit() as session:
        order = session.scalars(FIRST.with_for_update()).one()
        order.total += 10
        session.commit()


def plain_session(shop: Shop, _line: int) -> None:
    with shop.plain() as session:
        total = session.scalars(sa.select(Order.total).where(Order.id == 1)).one()
        session.execute(sa.update(Order).where(Order.id == 1).values(total=total + 10))
        session.commit()


def savepoint_rolled_back(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        order = session.get_one(Order, 1)
        total = order.total
        savepoint = session.begin_nested()
        session.get_entity(Order, 1, ForUpdate)
        savepoint.rollback()
        order.total = total + 10
        session.commit()


WRONG: tuple[Endpoint, ...] = (
    no_lock,
    lock_after_the_read,
    lock_on_the_line,
    committed_too_early,
    two_sessions,
    shared_read_then_write,
    cached_object,
    autocommit,
    plain_session,
    savepoint_rolled_back,
)


def block(shop: Shop, _line: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        order.total += 10


def get_one_entity(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        session.get_one_entity(Order, 1, ForUpdate).total += 10
        session.save_changes()


def with_for_update(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        order = session.scalars(FIRST.with_for_update()).one()
        order.total += 10
        session.commit()


def header_then_line(shop: Shop, line: int) -> None:
    with shop.locking() as session, session.locked(Order, 1) as order:
        session.get_one(Line, line).value += 10
        session.flush()
        values = sa.select(sa.func.sum(Line.value)).where(Line.order_id == 1)
        order.total = session.scalars(values).one()


def transaction(shop: Shop, _line: int) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 1, ForUpdate).total += 10

    run_transaction(shop.locking, change)


def one_statement(shop: Shop, _line: int) -> None:
    with shop.plain() as session:
        session.execute(sa.update(Order).where(Order.id == 1).values(total=Order.total + 10))
        session.commit()


def named_lock(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        session.lock_key("order:1")
        session.get_one(Order, 1).total += 10
        session.commit()


def tries_again(shop: Shop, _line: int) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 1, ForUpdate | NoWait).total += 10

    run_transaction(shop.locking, change, attempts=100, backoff=0.01, retry_not_available=True)


def several_documents(shop: Shop, _line: int) -> None:
    with shop.locking() as session:
        for order in session.get_entities(Order, [2, 1], ForUpdate):
            order.total += 10
        session.commit()


def in_a_savepoint(shop: Shop, _line: int) -> None:
    with shop.locking.begin() as session:
        with session.begin_nested():
            order = session.get_one_entity(Order, 1, ForUpdate)
        order.total += 10


RIGHT: tuple[Endpoint, ...] = (
    block,
    get_one_entity,
    with_for_update,
    header_then_line,
    transaction,
    one_statement,
    named_lock,
    tries_again,
    several_documents,
    in_a_savepoint,
)


# --------------------------------------------------------------------------------------------------
# two_at_once() finds the lost update in each wrong endpoint, and none in the correct ones.

Elsewhere = Callable[..., list[Any]]
BOTH = 50  # 30, and ten from each
EACH_RUN = [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.exhaustive])]


@pytest.fixture
def shop(engine: sa.Engine) -> Shop:
    return Shop(
        sessionmaker(engine, class_=LockingSession),
        sessionmaker(engine),
        sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"), class_=Session),
        cached_total=30,
    )


def is_right(
    shop: Shop, endpoint: Endpoint, elsewhere: Elsewhere, start_over: Callable[[], None]
) -> bool:
    """Run the endpoint twice at once; return whether both returned and both changes are stored."""
    start_over()
    outcomes = two_at_once(partial(endpoint, shop, 1), partial(endpoint, shop, 2))
    ((total,),) = elsewhere(sa.select(Order.total).where(Order.id == 1))
    errors = [one.error for one in outcomes if one.error is not None]
    if errors:
        print(errors)
    return not errors and total == BOTH


@pytest.mark.parametrize("runs", EACH_RUN)
@pytest.mark.parametrize("endpoint", WRONG, ids=lambda one: one.__name__)
def test_a_wrong_endpoint_is_found_each_time(
    shop: Shop,
    endpoint: Endpoint,
    elsewhere: Elsewhere,
    start_over: Callable[[], None],
    runs: int,
) -> None:
    found = [is_right(shop, endpoint, elsewhere, start_over) for _ in range(runs)]
    assert found == [False] * runs


@pytest.mark.parametrize("runs", EACH_RUN)
@pytest.mark.parametrize("endpoint", RIGHT, ids=lambda one: one.__name__)
def test_a_right_endpoint_passes_each_time(
    shop: Shop,
    endpoint: Endpoint,
    elsewhere: Elsewhere,
    start_over: Callable[[], None],
    runs: int,
) -> None:
    found = [is_right(shop, endpoint, elsewhere, start_over) for _ in range(runs)]
    assert found == [True] * runs
