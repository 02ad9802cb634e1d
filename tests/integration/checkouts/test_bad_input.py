"""Wrong arguments are clear errors before anything is sent, and one unreadable key does not hide the others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import CheckoutLost, LockingSession, LockOptions, checkout_table, lease_each
from tests.integration.checkouts.models import CHECKOUTS, Base, Order
from tests.integration.checkouts.test_statements import sent

Factory = sessionmaker[LockingSession]
own_logic = pytest.mark.databases("sqlite", "postgresql")

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
    """They are kept by every database, and one more byte is refused before anything is sent."""
    owner, note = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 255, "x" * 65_535
    session.check_out(Order, 1, owner, note=note)
    wide = "\N{GRINNING FACE}" * 127
    session.check_out(Order, 2, wide, note="\N{GRINNING FACE}" * 16_383)
    session.commit()
    assert [(one.owner, len(one.note or "")) for one in session.checkouts()] == [
        (owner, 65_535),
        (wide, 16_383),
    ]


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
    session.get_entity(Order, 1)  # the session goes on


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
    found = session.checkouts()
    assert [(one.ident, one.unreadable) for one in found] == [
        (1, False),
        ("not a number", True),
        (3, False),
    ]
    assert found[1].entity is Order
    assert session.checkouts(Order, owner="ann") == found
    for way in (session.check_in, session.renew):
        refused(partial(way, found[1]), ValueError, "cannot read the key 'not a number'")
    session.check_in(found[0])
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
