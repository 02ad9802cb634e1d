"""renew() and check_in() by an epoch that a page stored, beside those by a Checkout."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    Checkout,
    CheckoutLost,
    LockingScopedSession,
    LockingSession,
    LockMisuse,
    LockOptions,
    checkout_table,
    lease_each,
)
from tests.integration.asyncio.drivers import in_a_loop
from tests.integration.checkouts.models import CHECKOUTS, Article, Base, Memo, Order, expire
from tests.integration.checkouts.test_leases import sessions
from tests.integration.checkouts.test_statements import sent
from tests.support.databases import Database

pytestmark = pytest.mark.own_logic

if TYPE_CHECKING:
    from typing import assert_type
own_logic = pytest.mark.databases("sqlite", "postgresql")
MINUTE = timedelta(minutes=1)
Factory = sessionmaker[LockingSession]


def taken(factory: Factory) -> Checkout:
    with factory() as session:
        checkout = session.check_out(Order, 1, "ann", note="editing")
        session.commit()
    return checkout


@pytest.mark.not_databases("sqlite-journal")
def test_it_is_renewed_and_checked_in(factory: Factory, session: LockingSession) -> None:
    mine = taken(factory)
    longer = session.renew(Order, 1, mine.epoch, timedelta(hours=1))
    session.commit()
    assert longer == session.checkout_of(Order, 1)
    assert (longer.owner, longer.epoch, longer.since, longer.note) == (
        ("ann", 1, mine.since, "editing")
    )
    assert longer.until - mine.until > 44 * MINUTE
    assert session.renew(Order, 1, 1).lease == timedelta(hours=1)  # the same lease as before
    assert session.renew(Order, 1, 1, lease=60).lease == MINUTE
    session.commit()
    session.check_in(Order, 1, mine.epoch)
    session.commit()
    assert session.checkout_of(Order, 1, expired=True) is None


@pytest.mark.not_databases("sqlite-journal")
def test_an_expired_one_is_good(
    factory: Factory, session: LockingSession, engine: sa.Engine
) -> None:
    taken(factory)
    expire(engine)
    assert not session.renew(Order, 1, 1).expired
    session.commit()
    expire(engine)
    session.check_in(Order, 1, 1)


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
def test_the_key_is_that_of_the_row(session: LockingSession) -> None:
    mine = session.check_out(Article, "ABC", "ann")
    session.commit()
    if session.get(Article, "abc") is None:
        with pytest.raises(CheckoutLost):
            session.check_in(Article, "abc", mine.epoch)
    else:
        assert session.renew(Article, "abc", mine.epoch).ident == "ABC"
        session.check_in(Article, "abc", mine.epoch)


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
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


# --------------------------------------------------------------------------------------------------
# Wrong arguments fail before anything is sent; one unreadable key does not hide the others.

LEASES: list[Any] = [
    1e-9,
    0,
    0.0,
    0.0009,
    -1,
    float("nan"),
    float("inf"),
    1e300,
    10**400,
    timedelta(0),
    timedelta(microseconds=999),
    timedelta(days=36_501),
    timedelta.max,
]


@own_logic
@pytest.mark.parametrize("lease", LEASES, ids=repr)
def test_a_lease_that_no_database_keeps(
    session: LockingSession, factory: Factory, engine: sa.Engine, lease: Any
) -> None:
    mine = session.check_out(Order, 1, "ann")
    session.commit()
    ways: list[Callable[[], object]] = [
        lambda: session.check_out(Order, 1, "ann", lease=lease),
        lambda: session.take_over(Order, 1, "ann", lease=lease),
        lambda: session.renew(mine, lease),
        lambda: lease_each(factory, sa.select(Order), owner="ann", lease=lease),
    ]
    for way in ways:
        assert sent(engine, partial(refused, way, ValueError, "lease")) == []
    assert session.checkout_of(Order, 1) == mine


def refused(way: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        way()


@own_logic
def test_the_shortest_lease(session: LockingSession) -> None:
    mine = session.check_out(Order, 1, "ann", lease=0.001)
    assert mine.until - mine.since == mine.lease == timedelta(milliseconds=1)
    assert session.check_out(Order, 1, "ann", lease=0.0011).lease == timedelta(milliseconds=2)


@own_logic
@pytest.mark.parametrize("lease", [None, "5", True, Decimal(5)], ids=repr)
def test_a_lease_that_is_no_time(session: LockingSession, lease: Any) -> None:
    refused(lambda: session.check_out(Order, 1, "ann", lease=lease), TypeError, "lease must be")
    assert not session.in_transaction()


def test_the_longest_note_and_owner(session: LockingSession) -> None:
    """Every database stores them; one more byte is refused before a statement is sent."""
    owner, note = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 255, "x" * 65_535
    session.check_out(Order, 1, owner, note=note)
    wide = "\N{GRINNING FACE}" * 127
    session.check_out(Order, 2, wide, note="\N{GRINNING FACE}" * 16_383)
    session.commit()
    listed = session.checkouts()
    assert {checkout.owner: len(checkout.note or "") for checkout in listed} == {
        owner: 65_535,
        wide: 16_383,
    }


TOO_LONG: dict[str, dict[str, Any]] = {
    "note": {"owner": "ann", "note": "x" * 65_536},
    "note of wide characters": {"owner": "ann", "note": "\N{GRINNING FACE}" * 16_384},
    "owner": {"owner": "x" * 256},
    "owner of wide characters": {"owner": "\N{GRINNING FACE}" * 128},
    "no owner": {"owner": ""},
    "NUL": {"owner": "ann", "note": "a\0b"},
    "surrogate": {"owner": "a\ud800"},
}


@own_logic
@pytest.mark.parametrize("given", TOO_LONG.values(), ids=TOO_LONG)
def test_a_text_that_not_every_database_keeps(
    session: LockingSession, engine: sa.Engine, given: dict[str, Any]
) -> None:
    ways: list[Callable[[], object]] = [
        lambda: session.check_out(Order, 1, **given),
        lambda: session.take_over(Order, 1, **given),
    ]
    for way in ways:
        assert sent(engine, partial(refused, way, ValueError, "the (note|owner)")) == []


WRONG_TABLES: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "a base": ((Base,), TypeError, "takes a MetaData, such as Base.metadata"),
    "a table": ((CHECKOUTS,), TypeError, "takes a MetaData"),
    "nothing": ((None,), TypeError, "takes a MetaData"),
    "no name": ((sa.MetaData(), None), TypeError, "the name of checkout_table"),
    "an empty name": ((sa.MetaData(), ""), ValueError, "the name of checkout_table"),
    "a schema": ((sa.MetaData(), "a", 5), TypeError, "the schema of checkout_table"),
    "an empty schema": ((sa.MetaData(), "a", ""), ValueError, "the schema of checkout_table"),
}


@pytest.mark.parametrize("what", WRONG_TABLES)
def test_a_table_of_something_else(what: str) -> None:
    given, kind, text = WRONG_TABLES[what]
    refused(lambda: checkout_table(*given), kind, text)


@own_logic
def test_other_wrong_arguments(session: LockingSession) -> None:
    any_session = cast("Any", session)
    refused(lambda: any_session.checkouts(owner=5), TypeError, "owner must be a str or None")
    refused(lambda: any_session.check_out(Order, 1, 5), TypeError, "the owner must be a str")
    refused(lambda: any_session.check_in("ann"), TypeError, "checkout must be a Checkout")
    refused(lambda: any_session.renew(None), TypeError, "checkout must be a Checkout")
    session.get_entity(Order, 1)  # the session continues


def break_key(engine: sa.Engine, text: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(CHECKOUTS).where(CHECKOUTS.c.ident == "2").values(ident=text))


@pytest.mark.not_databases("sqlite-journal")
def test_a_key_that_the_class_cannot_read(
    session: LockingSession, other: LockingSession, engine: sa.Engine
) -> None:
    for ident in (1, 2, 3):
        session.check_out(Order, ident, "ann")
    session.commit()
    break_key(engine, "not a number")
    listed = session.checkouts()  # ordered by time, which can be equal within a millisecond
    found = {checkout.ident: checkout for checkout in listed}
    unreadable = found["not a number"]
    assert {ident: checkout.unreadable for ident, checkout in found.items()} == {
        1: False,
        "not a number": True,
        3: False,
    }
    assert unreadable.entity is Order
    assert session.checkouts(Order, owner="ann") == listed
    for way in (session.check_in, session.renew):
        refused(partial(way, unreadable), ValueError, "cannot read the key 'not a number'")
    session.check_in(found[1])
    session.commit()
    assert other.check_out(Order, 1, "bob").epoch == 2


@own_logic
def test_an_epoch_that_was_never_given(session: LockingSession) -> None:
    session.check_out(Order, 1, "ann")
    session.commit()
    for epoch in (0, -1, 2, 10**30):
        with pytest.raises(CheckoutLost):
            session.get_entity(Order, 1, LockOptions.ForUpdate, checkout=epoch)
        session.rollback()
