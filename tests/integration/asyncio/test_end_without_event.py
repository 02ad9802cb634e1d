"""Ctrl-C between the end of a transaction and SQLAlchemy's event of it, under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sa_doclock import LockOptions
from sa_doclock.asyncio import AsyncLockingSession
from tests.support.models import Customer, Order

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait

# SQLAlchemy's pool logs the interruption of a reset, and raises it.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


def interrupt_next_reset(engine: AsyncEngine) -> None:
    def interrupt(*_: object) -> None:
        event.remove(engine.sync_engine, "reset", interrupt)
        raise asyncio.CancelledError

    event.listen(engine.sync_engine, "reset", interrupt)


USES: dict[str, Callable[[AsyncLockingSession], object]] = {
    "held_locks": lambda session: session.held_locks,
    "on_commit": lambda session: session.on_commit(lambda: None),
    "add": lambda session: session.add(Customer(id=77, name="new")),
    "get_entity": lambda session: session.get_entity(Order, 2, ForUpdate),
}


@pytest.mark.parametrize("use", USES)
def test_the_next_use_does_not_fail_and_the_functions_are_called(url: sa.URL, use: str) -> None:
    called: list[str] = []

    async def committed() -> None:
        await asyncio.sleep(0)
        called.append("committed")

    async def run() -> None:
        engine = create_async_engine(url)
        async with AsyncLockingSession(engine) as session:
            await session.get_one_entity(Order, 1, ForUpdate)
            session.on_commit(committed)
            interrupt_next_reset(engine)
            with pytest.raises(asyncio.CancelledError):
                await session.commit()
            used = USES[use](session)
            if use == "get_entity":
                await used  # type: ignore[misc]
            elif use == "held_locks":
                assert used == {}
            await session.get_one_entity(Order, 2, ForUpdate)
            assert session.held_locks == {(Order, (2,)): ForUpdate}
            session.on_commit(lambda: called.append("rolled back"))
            await session.rollback()
        assert engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        await engine.dispose()

    asyncio.run(run())
    assert called == ["committed"]
