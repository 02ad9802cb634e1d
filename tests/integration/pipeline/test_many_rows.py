"""A statement of many rows in a session with a hold_limit: all is as without one."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import AsyncLockingSession, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Bill, Item, Note
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.integration.timeouts.wire import Wire
from tests.support.databases import Database
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = ON_POSTGRESQL

ForUpdate = LockOptions.ForUpdate
LIMITS = pytest.mark.parametrize("hold_limit", [None, 600])
BOTH = [{"id": -1, "value": 1}, {"id": -2, "value": 2}]
VALUES = sa.select(Item.value).order_by(Item.id)


@COUNTS_ROUND_TRIPS
@pytest.mark.parametrize("pipeline", [False, True])
@LIMITS
def test_they_travel_together(
    make: Sessions, wire: Wire, hold_limit: int | None, pipeline: bool
) -> None:
    session = make(pipeline=pipeline, hold_limit=hold_limit)
    session.get_entity(Bill, 1, ForUpdate)
    with wire.counting() as trips:
        session.execute(sa.update(Item), BOTH)
    assert trips == [1]
    assert session.scalars(VALUES).all() == [2, 1]
    session.commit()


# Past the ORM, in which SQLAlchemy counts the rows itself.
@LIMITS
def test_their_rows_are_counted(make: Sessions, hold_limit: int | None) -> None:
    session = make(pipeline=False, hold_limit=hold_limit)
    session.get_entity(Bill, 1, ForUpdate)
    statement = sa.update(Note).where(Note.id >= sa.bindparam("first")).values(text="x")
    found: Any = session.connection().execute(statement, [{"first": 2}, {"first": 3}])
    assert found.rowcount == 3  # two, and one
    with pytest.raises(StaleDataError, match=r"expected to update 2 row\(s\); 1 were matched"):
        session.execute(sa.update(Item), [BOTH[0], {"id": 99, "value": 2}])


@LIMITS
def test_the_first_error_is_raised(make: Sessions, hold_limit: int | None) -> None:
    session = make(pipeline=False, hold_limit=hold_limit)
    session.get_entity(Bill, 1, ForUpdate)
    same = [{"id": number, "text": "", "number": 1} for number in (7, 7, 8)]
    with pytest.raises(IntegrityError):
        session.connection().execute(sa.insert(Note), same)
    session.rollback()
    session.get_entity(Bill, 1, ForUpdate)
    unknown = [{"id": 7, "text": "", "number": 1}, {"id": 8, "text": object(), "number": 1}]
    with pytest.raises(ProgrammingError, match="cannot adapt type 'object'"):
        session.connection().execute(sa.insert(Note), unknown)
    session.rollback()
    session.execute(sa.insert(Note), same[1:])
    assert len(session.scalars(sa.select(Note)).all()) == 5


@in_a_loop
async def test_under_asyncio(bills: Database) -> None:
    url = sa.make_url(bills.url)
    async with (
        connected(url) as engine,
        AsyncLockingSession(engine, hold_limit=600) as session,
    ):
        await session.get_entity(Bill, 1, ForUpdate)
        await session.execute(sa.update(Item), BOTH)
        assert (await session.scalars(VALUES)).all() == [2, 1]
        with pytest.raises(StaleDataError, match=r"expected to update 2 row\(s\); 1 were matched"):
            await session.execute(sa.update(Item), [BOTH[0], {"id": 99, "value": 2}])
        await session.rollback()
        await session.get_entity(Bill, 1, ForUpdate)
