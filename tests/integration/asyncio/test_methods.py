"""Each method does the same on an asynchronous driver as LockingSession on a synchronous one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import selectinload

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop, opened
from tests.integration.asyncio.plays import (
    Player,
    Stage,
    cancel_while_waiting,
    playing,
    roll_back,
    save,
    state_of,
)
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.models import Account, Contract, Lease, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.each_value

SHARED, FOR_UPDATE, SNAPSHOT, NO_WAIT = (
    LockOptions.SharedRead,
    LockOptions.ForUpdate,
    LockOptions.SnapshotRead,
    LockOptions.NoWait,
)
WITH_LINES = [selectinload(Order.lines)]

#: Each call accepts either kind of session; an awaitable result is awaited.
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
    except Exception as error:  # noqa: BLE001  # both must raise the same, whatever it is
        return type(error), str(error).partition("\n")[0]
    total = None if found is None else found.total
    lines = None if found is None else [line.value for line in found.__dict__.get("lines", ())]
    return total, lines, dict(session.held_locks), session.in_transaction()


@pytest.mark.own_logic
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


# --------------------------------------------------------------------------------------------------
# Awaited lock_key() waits, is refused or is cancelled, and leaves nothing on the connection.

KEY = "user:42"
FREE = (False, 0, 0)


async def take(session: AsyncLockingSession) -> None:
    await session.lock_key(KEY)


async def take_at_once(session: AsyncLockingSession) -> None:
    await session.lock_key(KEY, lock_timeout=0)
    await session.rollback()


def is_free(player: Player) -> bool:
    """Return whether the key is free.

    A server notices a disconnected waiter only when it grants the lock.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            player.does(playing(take_at_once))
        except LockNotAvailable:
            continue
        return True
    return False


def test_the_second_waits_for_the_end_of_the_first(ann: Player, ben: Player) -> None:
    for end in (save, roll_back):
        ann.does(playing(take))
        queued = ben.starts(playing(take))
        wait_until_blocked(waiter=ben, holder=ann, step=queued)
        ann.does(playing(end))
        queued.result()
        ben.does(playing(end))


def test_it_gets_an_error_after_that_time(ann: Player, ben: Player) -> None:
    async def take_soon(session: AsyncLockingSession) -> None:
        await session.lock_key(KEY, lock_timeout=0.2)

    ann.does(playing(take))
    with pytest.raises(LockNotAvailable, match=r"'user:42' FOR UPDATE on .* within 0\.2 s"):
        ben.does(playing(take_soon))
    assert state_of(ben) == FREE
    ann.does(playing(save))
    ben.does(playing(take_soon))


def test_cancelled_while_it_waits(
    ann: Player, ben: Player, enter_async: Callable[[str], Player]
) -> None:
    ann.does(playing(take))
    cancel_while_waiting(ben, ann, take)
    assert state_of(ben) == FREE
    ann.does(playing(roll_back))
    assert is_free(enter_async("cleo"))


def test_cancelled_while_it_is_held(ben: Player, enter_async: Callable[[str], Player]) -> None:
    stage = Stage()

    async def stop_with_it(session: AsyncLockingSession) -> None:
        async with session.begin():
            await session.lock_key(KEY)
            await stage.stop()

    stage.cancel(ben, stop_with_it)
    assert state_of(ben) == FREE
    assert is_free(enter_async("cleo"))


# --------------------------------------------------------------------------------------------------
# Awaited get_or_create_entity().

CALLERS = 12


@in_a_loop
async def test_twelve_tasks_at_once_get_one_row(url: sa.URL) -> None:
    async def call() -> bool:
        async with AsyncLockingSession(engine) as session:
            order, created = await session.get_or_create_entity(
                Order, 7, defaults=lambda: Order(total=0), lock_timeout=20
            )
            order.total += 1
            await session.save_changes()
            return created

    async with connected(url, pool_size=CALLERS) as engine:
        assert sum(await asyncio.gather(*(call() for _ in range(CALLERS)))) == 1
        async with AsyncLockingSession(engine) as session:
            assert (await session.get_one(Order, 7)).total == CALLERS


# --------------------------------------------------------------------------------------------------
# A held document that expired is loaded again: none of its attributes needs an await.

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
    """Hold order 1 with its lines, expire it, and lock it again."""
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
