"""A document that is held and has expired comes back loaded: no attribute of it needs an await."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import AsyncLockingSession, LockOptions
from tests.integration.asyncio.drivers import in_a_loop, opened
from tests.support.models import Contract, Lease, Order

FOR_UPDATE, SHARED, SNAPSHOT = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
Session = AsyncLockingSession
Expire = Callable[[Session, Order], Awaitable[None]]
Take = Callable[[Session, Order], Awaitable[Order | None]]


async def roll_back_to_savepoint(session: Session, order: Order) -> None:
    savepoint = await session.begin_nested()
    order.total, order.lines[0].value = 31, 11
    await session.flush()
    await savepoint.rollback()


async def expire(session: Session, order: Order) -> None:
    session.expire(order)


async def expire_total(session: Session, order: Order) -> None:
    session.expire(order, ["total"])


async def expire_all(session: Session, _: Order) -> None:
    session.expire_all()


async def _entered(block: AbstractAsyncContextManager[Any]) -> Any:
    async with block as found:
        return found


async def _first(found: Awaitable[list[Order]]) -> Order:
    return (await found)[0]


ENTITIES: dict[str, Take] = {
    "get_entity": lambda s, _: s.get_entity(Order, 1, FOR_UPDATE),
    "get_one_entity": lambda s, _: s.get_one_entity(Order, 1, SHARED),
    "get_entities": lambda s, _: _first(s.get_entities(Order, [2, 1], FOR_UPDATE)),
    "lock": lambda s, order: s.lock(order),
    "locked": lambda s, _: _entered(s.locked(Order, 1)),
    "locked object": lambda s, order: _entered(s.locked(order)),
    "get": lambda s, _: s.get(Order, 1, with_for_update=True),
    "select": lambda s, _: s.scalar(sa.select(Order).where(Order.id == 1).with_for_update()),
}
DOCUMENTS: dict[str, Take] = {
    "get_document": lambda s, _: s.get_document(Order, 1, FOR_UPDATE),
    "get_one_document": lambda s, _: s.get_one_document(Order, 1, SHARED),
    "get_documents": lambda s, _: _first(s.get_documents(Order, [2, 1], FOR_UPDATE)),
    "locked_document": lambda s, _: _entered(s.locked_document(Order, 1)),
    "locked_documents": lambda s, _: _first(_entered(s.locked_documents(Order, [1, 2]))),
}
EXPIRATIONS = (roll_back_to_savepoint, expire, expire_total, expire_all)
each_expiration = pytest.mark.parametrize("expire", EXPIRATIONS)


async def _again(session: Session, expire: Expire, take: Take) -> Order:
    """Hold order 1 with its lines, expire it, and take it again."""
    order = await session.get_one_document(Order, 1, FOR_UPDATE)
    await expire(session, order)
    assert await take(session, order) is order
    return order


@each_expiration
@pytest.mark.parametrize("take", ENTITIES.values(), ids=ENTITIES)
@in_a_loop
async def test_an_entity_is_loaded(url: sa.URL, expire: Expire, take: Take) -> None:
    async with opened(url) as session:
        order = await _again(session, expire, take)
        assert (order.id, order.total) == (1, 30)


@each_expiration
@pytest.mark.parametrize("take", DOCUMENTS.values(), ids=DOCUMENTS)
@in_a_loop
async def test_a_document_is_loaded_with_its_parts(url: sa.URL, expire: Expire, take: Take) -> None:
    async with opened(url) as session:
        order = await _again(session, expire, take)
        assert (order.total, [line.value for line in order.lines]) == (30, [10, 20])


@pytest.mark.parametrize("lock", [SHARED, SNAPSHOT])
@in_a_loop
async def test_a_document_under_a_read_lock_is_loaded(url: sa.URL, lock: LockOptions) -> None:
    async with opened(url) as session:
        order = await session.get_one_document(Order, 1, lock)
        session.expire_all()
        assert await session.get_document(Order, 1, lock) is order
        assert (order.total, [line.value for line in order.lines]) == (30, [10, 20])


@pytest.mark.parametrize("many", [False, True])
@in_a_loop
async def test_an_object_of_a_subclass_is_loaded_with_its_own_columns(
    url: sa.URL, *, many: bool
) -> None:
    async with opened(url) as session:
        lease = await session.get_one_entity(Lease, 1, FOR_UPDATE)
        session.expire(lease)
        if many:
            found = await session.get_entities(Contract, [1, 2], FOR_UPDATE)
            assert found[0] is lease
        else:
            assert await session.get_entity(Contract, 1, FOR_UPDATE) is lease
        assert (lease.total, lease.rent) == (30, 100)


@in_a_loop
async def test_what_was_read_as_its_base_class_is_loaded_as_what_is_asked_for(url: sa.URL) -> None:
    async with opened(url) as session:
        lease = await session.get_one_entity(Contract, 1, FOR_UPDATE)
        assert await session.get_entity(Lease, 1, FOR_UPDATE) is lease
        assert isinstance(lease, Lease)
        assert lease.rent == 100
