"""renew() and check_in() by the epoch that a page has kept, beside those with a Checkout."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import Checkout, CheckoutLost, LockingScopedSession, LockingSession, LockMisuse
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.checkouts.models import CHECKOUTS, Article, Memo, Order, expire
from tests.integration.checkouts.test_async import sessions
from tests.integration.checkouts.test_statements import sent
from tests.support.databases import Database

if TYPE_CHECKING:
    from typing import assert_type

pytestmark = pytest.mark.not_databases("sqlite-journal")
own_logic = pytest.mark.databases("sqlite", "postgresql")
MINUTE = timedelta(minutes=1)
Factory = sessionmaker[LockingSession]


def taken(factory: Factory) -> Checkout:
    with factory() as session:
        checkout = session.check_out(Order, 1, "ann", note="editing")
        session.commit()
    return checkout


def test_it_is_renewed_and_checked_in(factory: Factory, session: LockingSession) -> None:
    mine = taken(factory)
    longer = session.renew(Order, 1, mine.epoch, timedelta(hours=1))
    session.commit()
    assert longer == session.checkout_of(Order, 1)
    assert (longer.owner, longer.epoch, longer.since, longer.note) == (
        ("ann", 1, mine.since, "editing")
    )
    assert longer.until - mine.until > 44 * MINUTE
    assert session.renew(Order, 1, 1).lease == timedelta(hours=1)  # as long as before
    assert session.renew(Order, 1, 1, lease=60).lease == MINUTE
    session.commit()
    session.check_in(Order, 1, mine.epoch)
    session.commit()
    assert session.checkout_of(Order, 1, expired=True) is None


def test_an_expired_one_is_good(
    factory: Factory, session: LockingSession, engine: sa.Engine
) -> None:
    taken(factory)
    expire(engine)
    assert not session.renew(Order, 1, 1).expired
    session.commit()
    expire(engine)
    session.check_in(Order, 1, 1)


def test_a_lost_one(factory: Factory, session: LockingSession, other: LockingSession) -> None:
    taken(factory)
    other.take_over(Order, 1, "bob")
    other.commit()
    for epoch, found in ((1, 2), (3, 2), (0, 2), (-1, 2), (10**30, 2)):
        for way in (session.renew, session.check_in):
            with pytest.raises(CheckoutLost, match="Order 1 ") as caught:
                way(Order, 1, epoch)
            assert (caught.value.entity, caught.value.ident) == (Order, 1)
            assert (caught.value.expected, caught.value.found) == (epoch, found)
            assert not session.in_transaction()
    session.check_in(Order, 1, 2)
    session.commit()
    ways: tuple[Any, ...] = (session.renew, session.check_in)
    for way in ways:
        with pytest.raises(CheckoutLost, match="was checked in"):
            way(Order, 1, 2)
        with pytest.raises(
            CheckoutLost, match="there was no check-out with the epoch 3, the latest "
        ):
            way(Order, 1, 3)
        with pytest.raises(CheckoutLost, match="there was no check-out with the epoch 1;"):
            way(Order, 2, 1)
        with pytest.raises(TypeError, match=rf"^{way.__name__}\(\) missing 1 .*'epoch'"):
            way(Order, 1)
    assert not session.in_transaction()


def test_the_key_is_that_of_the_row(session: LockingSession) -> None:
    mine = session.check_out(Article, "ABC", "ann")
    session.commit()
    if session.get(Article, "abc") is None:
        with pytest.raises(CheckoutLost):
            session.check_in(Article, "abc", mine.epoch)
    else:
        assert session.renew(Article, "abc", mine.epoch).ident == "ABC"
        session.check_in(Article, "abc", mine.epoch)


@own_logic
def test_it_costs_one_select_more(
    factory: Factory, session: LockingSession, engine: sa.Engine
) -> None:
    mine = taken(factory)
    session.renew(mine)
    words = [
        [one.split()[0] for one in sent(engine, way)]
        for way in (
            lambda: session.renew(mine),
            lambda: session.renew(Order, 1, 1),
            lambda: session.check_in(Order, 1, 1),
        )
    ]
    assert words == [
        ["UPDATE", "SELECT", "UPDATE"],
        ["SELECT", "UPDATE", "SELECT", "UPDATE"],
        ["SELECT", "UPDATE"],
    ]


@own_logic
def test_wrong_arguments(factory: Factory, session: LockingSession, engine: sa.Engine) -> None:
    mine = taken(factory)
    wrong = cast("Any", session)
    for given in ((), (Order,), (Order, 1), (Order, 1, 1, 60, 5), (mine, 60, 5)):
        with pytest.raises(TypeError):
            wrong.renew(*given)
    for few_or_many in ((), (Order,), (Order, 1), (Order, 1, 1, 60), (mine, 60)):
        with pytest.raises(TypeError):
            wrong.check_in(*few_or_many)
    for epoch in (None, True, "1", 1.0, mine):
        for way in (wrong.renew, wrong.check_in):
            with pytest.raises(TypeError, match="the epoch must be an int"):
                way(Order, 1, epoch)
    with pytest.raises(LockMisuse, match="cannot be checked out"):
        session.check_in(Memo, 1, 1)
    with pytest.raises(LockMisuse, match="checkouts=table"), LockingSession(engine) as plain:
        plain.renew(Order, 1, 1)
    assert session.renew(checkout=mine, lease=60).lease == MINUTE
    assert session.renew(entity=Order, ident=1, epoch=1, lease=60).lease == MINUTE
    session.check_in(entity=Order, ident=1, epoch=1)


@own_logic
def test_a_scoped_session(factory: Factory, engine: sa.Engine) -> None:
    taken(factory)
    scoped = LockingScopedSession(sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS))
    renewed = scoped.renew(Order, 1, 1, MINUTE)
    if TYPE_CHECKING:
        assert_type(renewed, Checkout)
    assert renewed.lease == scoped.renew(renewed).lease == MINUTE
    scoped.check_in(Order, 1, 1)
    scoped.remove()


@own_logic
@in_a_loop
async def test_asyncio(database: Database, factory: Factory) -> None:
    taken(factory)
    driver = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}[database.name]
    async with sessions(database, driver) as make, make() as session:
        renewed = await session.renew(Order, 1, 1, MINUTE)
        if TYPE_CHECKING:
            assert_type(renewed, Checkout)
        assert renewed.lease == (await session.renew(renewed)).lease == MINUTE
        with pytest.raises(CheckoutLost):
            await session.check_in(Order, 1, 2)
        await session.renew(Order, 1, 1)
        await session.check_in(Order, 1, 1)
        await session.commit()
        assert await session.checkout_of(Order, 1) is None
