"""The limits of an AsyncLockingSession are those of LockingSession, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import (
    AsyncLockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    with_lock,
)
from tests.integration.asyncio.drivers import connected, drivers_of, in_a_loop, url_for
from tests.integration.timeouts.ways import SHORT
from tests.support.databases import Database
from tests.support.models import Lease, Order

ForUpdate = LockOptions.ForUpdate
Session = AsyncLockingSession


async def by_block(session: Session, **how: Any) -> None:
    async with session.locked(Order, 1, **how):
        pass


async def by_set(session: Session, **how: Any) -> None:
    await session.scalars(session.entity_set(Order, ForUpdate, **how))


WAYS: Mapping[str, Callable[..., Awaitable[object]]] = {
    "get_entity": lambda session, **how: session.get_entity(Order, 1, ForUpdate, **how),
    "get_one_entity": lambda session, **how: session.get_one_entity(Lease, 1, ForUpdate, **how),
    "get_entities": lambda session, **how: session.get_entities(Order, [1, 2], ForUpdate, **how),
    "get_document": lambda session, **how: session.get_document(Order, 1, ForUpdate, **how),
    "get_documents": lambda session, **how: session.get_documents(Order, [1], ForUpdate, **how),
    "locked": by_block,
    "entity_set": by_set,
}


async def given_up(session: Session, attempt: Awaitable[object]) -> LockNotAvailable:
    with pytest.raises(LockNotAvailable) as caught:
        await attempt
    assert caught.value.waited > 0
    assert not session.in_transaction()
    return caught.value


def each_driver(play: Callable[[Session, str], Awaitable[None]], **options: Any) -> Any:
    """Play this by each driver of the database, another session holding everything."""

    @in_a_loop
    async def test(documents: Database) -> None:
        for driver in drivers_of(documents.column):
            async with connected(url_for(documents, driver)) as engine, Session(engine) as holder:
                await holder.get_one_entity(Order, 1, ForUpdate)
                await holder.get_one_entity(Lease, 1, ForUpdate)
                async with Session(engine, **options) as session:
                    await play(session, driver)

    return test


async def _every_way(session: Session, driver: str) -> None:
    for name, way in WAYS.items():
        error = await given_up(session, way(session, lock_timeout=SHORT))
        assert f"not granted within {SHORT:g} s" in str(error), (driver, name)
        error = await given_up(session, way(session, lock_timeout=0))
        assert "held by another transaction" in str(error), (driver, name)


async def _by_default(session: Session, driver: str) -> None:
    for name, way in WAYS.items():
        error = await given_up(session, way(session))
        assert f"not granted within {SHORT:g} s" in str(error), (driver, name)
    statement = with_lock(sa.select(Order), ForUpdate)
    assert "within 0.05 s" in str(await given_up(session, session.scalars(statement)))
    assert "within 0.06 s" in str(
        await given_up(session, WAYS["get_entity"](session, lock_timeout=0.06))
    )


async def _alongside(session: Session, _: str) -> None:
    passed = 0

    async def work() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(0)
            passed += 1

    working = asyncio.ensure_future(work())
    await given_up(session, WAYS["get_entity"](session, lock_timeout=SHORT))
    working.cancel()
    assert passed > 1


test_every_way_takes_the_limit = each_driver(_every_way)
test_the_sessions_own_limit_is_for_all = each_driver(_by_default, lock_timeout=SHORT)
test_others_of_the_loop_go_on_meanwhile = each_driver(_alongside)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="lock_timeout"):
        AsyncLockingSession(lock_timeout=value)


@pytest.mark.databases("postgresql")
@in_a_loop
async def test_what_is_not_supported_is_reported_with_a_limit_as_without(
    documents: Database,
) -> None:
    for driver in drivers_of(documents.column):
        async with connected(url_for(documents, driver)) as engine, Session(engine) as session:
            await session.execute(sa.text("SET TRANSACTION READ ONLY"))
            with pytest.raises(LockNotSupported, match="read-only"):
                await session.get_entity(Order, 1, ForUpdate, lock_timeout=5)
