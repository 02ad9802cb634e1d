"""A header whose parts are in another database cannot be locked: each database commits by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.support.models import Line, Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed, pytest.mark.not_databases("mssql")]

ForUpdate = LockOptions.ForUpdate
WAYS: dict[str, Callable[[LockingSession], object]] = {
    "get_entity": lambda session: session.get_entity(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1], ForUpdate),
    "a set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "adopted": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_parts_of_another_engine(
    make_engine: Callable[..., sa.Engine], way: Callable[[LockingSession], object]
) -> None:
    with LockingSession(binds={Order: make_engine(), Line: make_engine()}) as session:
        with pytest.raises(
            LockNotSupported, match=r"Line is in .* parts that another database commits"
        ):
            way(session)
        session.rollback()
        assert not session.held_locks


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_both_of_one_engine(
    make_engine: Callable[..., sa.Engine], way: Callable[[LockingSession], object]
) -> None:
    engine = make_engine()
    with LockingSession(binds={Order: engine, Line: engine}) as session:
        way(session)
        assert session.held_locks
