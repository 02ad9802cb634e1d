"""A row that the session has twice, under two identity tokens, is not locked with one of them old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockMisuse, LockOptions
from tests.support.models import Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed, pytest.mark.not_databases("mssql")]

ForUpdate = LockOptions.ForUpdate
Way = Callable[[LockingSession], Any]
ONE = sa.select(Order).where(Order.id == 1)
TOKEN = {"identity_token": "north"}

WAYS: dict[str, Way] = {
    "get_entity": lambda session: session.get_entity(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1, 2], ForUpdate),
    "a set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "adopted": lambda session: session.scalars(ONE.with_for_update()).all(),
    "query": lambda session: session.query(Order).with_for_update().filter_by(id=1).one(),
    "a key": lambda session: session.execute(
        sa.select(Order.id).where(Order.id == 1).with_for_update()
    ).all(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_object_under_a_token_is_not_left_old(session: LockingSession, way: Way) -> None:
    kept = session.scalars(ONE, execution_options=TOKEN).one()
    with pytest.raises(LockMisuse, match=r"Order 1 under .* also has it under 'north'"):
        way(session)
    session.rollback()
    del kept


def test_nor_one_without_where_the_lock_has_a_token(session: LockingSession) -> None:
    kept = session.scalars(ONE).one()
    with pytest.raises(LockMisuse, match="also has it under None"):
        session.scalars(ONE.with_for_update(), execution_options=TOKEN).all()
    session.rollback()
    del kept


def test_one_object_under_its_own_token_is_read_again(
    session: LockingSession, elsewhere: Callable[..., Any]
) -> None:
    kept = session.scalars(ONE, execution_options=TOKEN).one()
    session.commit()
    kept.total  # noqa: B018  # it is loaded again
    elsewhere(sa.update(Order).where(Order.id == 1).values(total=99))
    (order,) = session.scalars(ONE.with_for_update(), execution_options=TOKEN)
    assert order is kept
    assert order.total == 99


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_expunged_object_is_no_hindrance(session: LockingSession, way: Way) -> None:
    session.expunge(session.scalars(ONE, execution_options=TOKEN).one())
    way(session)
    assert session.held_locks
