"""Each method does on an asynchronous driver what LockingSession does on the ordinary one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import selectinload

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from tests.integration.asyncio.drivers import in_a_loop, opened
from tests.support.databases import Database
from tests.support.models import Account, Lease, Order, Voucher

SHARED, FOR_UPDATE = LockOptions.SharedRead, LockOptions.ForUpdate
SNAPSHOT, NO_WAIT = LockOptions.SnapshotRead, LockOptions.NoWait
WITH_LINES = [selectinload(Order.lines)]

#: Either kind of session is given; what comes back is awaited if it can be.
CALLS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda s: s.get_entity(Order, 1),
    "NoLock": lambda s: s.get_entity(Order, 1, LockOptions.NoLock),
    "ForUpdate": lambda s: s.get_entity(Order, 1, FOR_UPDATE),
    "NoWait": lambda s: s.get_entity(Order, 1, FOR_UPDATE | NO_WAIT),
    "lock_timeout": lambda s: s.get_entity(Order, 1, FOR_UPDATE, lock_timeout=2),
    "SharedRead": lambda s: s.get_entity(Order, 1, SHARED),
    "SnapshotRead": lambda s: s.get_entity(Order, 1, SNAPSHOT),
    "options": lambda s: s.get_entity(Order, 1, FOR_UPDATE, options=WITH_LINES),
    "joined inheritance": lambda s: s.get_entity(Lease, 1, FOR_UPDATE),
    "composite key": lambda s: s.get_entity(Voucher, (2024, 1), FOR_UPDATE),
    "missing": lambda s: s.get_entity(Order, 99, FOR_UPDATE),
    "one": lambda s: s.get_one_entity(Order, 2, FOR_UPDATE),
    "one missing": lambda s: s.get_one_entity(Order, 99, FOR_UPDATE),
    "wrong lock": lambda s: s.get_entity(Order, 1, FOR_UPDATE | SHARED),
    "wrong key": lambda s: s.get_entity(Order, (1, 2), FOR_UPDATE),
    "wrong entity": lambda s: s.get_entity("Order", 1, FOR_UPDATE),
    "set": lambda s: s.scalar(s.entity_set(Order, FOR_UPDATE).order_by(Order.id).limit(1)),
    "set of two tables": lambda s: s.scalar(s.entity_set(Lease, FOR_UPDATE)),
    "set skipping": lambda s: s.scalar(s.entity_set(Voucher, FOR_UPDATE | LockOptions.SkipLocked)),
    "document": lambda s: s.get_one_document(Order, 1, FOR_UPDATE),
    "document missing": lambda s: s.get_one_document(Order, 99, FOR_UPDATE),
    "no version": lambda s: s.get_entity(Order, 1, FOR_UPDATE, version=1),
    "stale": lambda s: s.get_entity(Account, 1, FOR_UPDATE, version=7),
    "lock of nothing": lambda s: s.lock(None),
    "with_for_update": lambda s: s.scalar(
        sa.select(Order).where(Order.id == 1).with_for_update(nowait=True)
    ),
    "get with_for_update": lambda s: s.get(Order, 1, with_for_update=True),
    "release": lambda s: s.release_locks(),
    "save": lambda s: s.save_changes(),
}


async def _came_out(session: Any, call: Callable[[Any], Any]) -> tuple[object, ...]:
    try:
        found = call(session)
        if inspect.isawaitable(found):
            found = await found
    except Exception as error:  # noqa: BLE001  # whatever it is, both must raise it
        return type(error), str(error).partition("\n")[0]
    total = None if found is None else found.total
    lines = None if found is None else [line.value for line in found.__dict__.get("lines", ())]
    return total, lines, dict(session.held_locks), session.in_transaction()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@in_a_loop
async def test_it_does_the_same(
    documents: Database, url: sa.URL, call: Callable[[Any], Any]
) -> None:
    with LockingSession(documents.engine()) as session:
        expected = await _came_out(session, call)
    async with opened(url) as session:
        assert await _came_out(session, call) == expected


@in_a_loop
async def test_changes_are_saved_and_the_lock_is_gone(url: sa.URL) -> None:
    async with opened(url) as session:
        order = await session.get_one_entity(Order, 1, FOR_UPDATE, options=WITH_LINES)
        order.total += 10
        order.lines[0].value += 10
        await session.save_changes()
        assert not session.held_locks
        assert not session.in_transaction()
        order = await session.get_one_entity(Order, 1, SHARED, options=WITH_LINES)
        assert order.total == sum(line.value for line in order.lines) == 40


@in_a_loop
async def test_changes_are_gone_with_the_locks(url: sa.URL) -> None:
    async with opened(url) as session:
        (await session.get_one_entity(Order, 1, FOR_UPDATE)).total = 7
        await session.flush()
        await session.release_locks()
        assert not session.held_locks
        assert (await session.get_one_entity(Order, 1)).total == 30


@in_a_loop
async def test_a_block_saves(url: sa.URL) -> None:
    async with opened(url) as session:
        async with session.locked(Order, 1) as order:
            assert session.held_locks == {(Order, (1,)): FOR_UPDATE}
            order.total = 7
        assert not session.in_transaction()
        assert (await session.get_one_entity(Order, 1)).total == 7


@in_a_loop
async def test_a_block_of_a_reader_rolls_back(url: sa.URL) -> None:
    async with opened(url) as session:
        async with session.locked(Order, 1, SHARED, options=WITH_LINES) as order:
            assert order.total == sum(line.value for line in order.lines)
        assert not session.in_transaction()


@in_a_loop
async def test_an_exception_comes_out_of_the_block_and_nothing_is_saved(url: sa.URL) -> None:
    stop = LookupError("stop")

    async def leave_by_it(session: AsyncLockingSession) -> None:
        async with session.locked(Order, 1) as order:
            order.total = 7
            await session.flush()
            raise stop

    async with opened(url) as session:
        with pytest.raises(LookupError) as caught:
            await leave_by_it(session)
        assert caught.value is stop
        assert not session.in_transaction()
        assert (await session.get_one_entity(Order, 1)).total == 30


@in_a_loop
async def test_a_block_without_its_document_is_not_entered(url: sa.URL) -> None:
    async with opened(url) as session:
        with pytest.raises(NoResultFound, match="no Order with the primary key 99"):
            async with session.locked(Order, 99):
                pytest.fail("the block was entered")
        assert not session.in_transaction()


@in_a_loop
async def test_an_inner_block_leaves_the_transaction_to_the_outer(url: sa.URL) -> None:
    async with opened(url) as session:
        async with session.locked(Order, 1), session.locked(Order, 2) as second:
            second.total = 7
            assert len(session.held_locks) == 2
        assert not session.held_locks
        assert (await session.get_one_entity(Order, 2)).total == 7


@in_a_loop
async def test_blocks_on_an_object_a_select_and_several_documents(url: sa.URL) -> None:
    async with opened(url) as session:
        order = await session.get_one(Order, 1)
        await session.commit()
        assert await session.lock(order) is order
        await session.rollback()
        async with session.locked(order) as locked:
            assert locked is order
            order.total = 7
        async with session.locked_document(sa.select(Order).where(Order.id == 1)) as order:
            assert order.total == 7
            assert len(order.lines) == 2
        async with session.locked_documents(Order, [2, 1]) as documents:
            assert [document.id for document in documents] == [2, 1]
            assert len(documents[1].lines) == 2
        assert not session.in_transaction()
