"""Errors that are not about the document that is held."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.support.databases import PIPELINED, Database
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
LIMIT = {"postgresql": "SET LOCAL lock_timeout = '50ms'", "mssql": "SET LOCK_TIMEOUT 50"}
LIMIT_ELSEWHERE = "SET SESSION innodb_lock_wait_timeout = 1"


@pytest.mark.not_databases("sqlite")  # the file's lock is one
@pytest.mark.read_committed
def test_a_row_that_is_not_available_is_not_the_one_that_is_held(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_entity(Order, 2, ForUpdate)
    session.get_entity(Order, 1, ForUpdate)
    connection = session.connection()
    connection.exec_driver_sql(LIMIT.get(database.name, LIMIT_ELSEWHERE))
    with pytest.raises(LockNotAvailable, match=r"^the transaction on ") as caught:
        session.execute(sa.update(Order).where(Order.id == 2).values(total=7))
    assert (caught.value.entity, caught.value.ident) == (None, None)
    session.invalidate()  # the connection goes with its limit


@pytest.mark.not_databases(PIPELINED)
@pytest.mark.databases("postgresql")
@in_a_loop
async def test_of_the_lender_between_two_transactions_it_is_nothing(documents: Database) -> None:
    url = url_for(documents, "asyncpg")  # which does not tell whether it was aborted
    async with connected(url) as engine, engine.connect() as lent:
        session = AsyncLockingSession(bind=lent)
        await session.get_entity(Order, 1, ForUpdate)
        await session.commit()
        with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
            await lent.execute(sa.text("SELECT 1/0"))
        await lent.rollback()
        order = await session.get_one_entity(Order, 1, ForUpdate)
        order.total = 8
        await session.commit()
        assert not session.in_transaction()
        await session.close()
