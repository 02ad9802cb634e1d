"""A task that is cancelled leaves no lock behind, and a pool that works: sqlalchemy issue 12099."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import event
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import AsyncLockingSession
from tests.integration.asyncio.bridge import playing
from tests.integration.asyncio.cancelling import (
    Player,
    Stage,
    cancel_while_waiting,
    is_free_soon,
    state_of,
)
from tests.integration.asyncio.plays import add_ten, lock_at_once, locks, look, roll_back
from tests.support.models import Customer, Order

Enter = Callable[[str], Player]


@pytest.mark.not_databases("mssql")  # aioodbc: a task that waits for a lock cannot be cancelled
def test_while_it_waits_for_a_lock(ann: Player, ben: Player, enter_async: Enter) -> None:
    ann.does(playing(add_ten))
    cancel_while_waiting(ben, ann, locks(1))
    assert state_of(ben) == (False, 0, 0)
    ann.does(playing(roll_back))
    assert is_free_soon(enter_async("cleo"))
    assert ben.does(playing(look)) == "Ann"


@pytest.mark.not_databases("mssql")  # aioodbc: a task that waits for a lock cannot be cancelled
def test_while_it_waits_to_enter_a_block(ann: Player, ben: Player, enter_async: Enter) -> None:
    async def enter_block(session: AsyncLockingSession) -> None:
        async with session.locked(Order, 1):
            pytest.fail("the block was entered")

    ann.does(playing(add_ten))
    cancel_while_waiting(ben, ann, enter_block)
    assert state_of(ben) == (False, 0, 0)
    ann.does(playing(roll_back))
    assert is_free_soon(enter_async("cleo"))


@pytest.mark.not_databases("mssql")  # aioodbc: a task that waits for a lock cannot be cancelled
def test_while_it_waits_in_a_transaction(ann: Player, ben: Player, enter_async: Enter) -> None:
    async def read_then_lock(session: AsyncLockingSession) -> None:
        await session.connection(execution_options={"isolation_level": level})
        await look(session)
        await locks(1)(session)

    level = "SERIALIZABLE" if ann.database.name == "sqlite" else "READ COMMITTED"
    ann.does(playing(add_ten))
    cancel_while_waiting(ben, ann, read_then_lock)
    with pytest.raises(PendingRollbackError):
        ben.does(playing(look))
    ben.does(playing(roll_back))
    assert state_of(ben) == (False, 0, 0)
    ann.does(playing(roll_back))
    assert is_free_soon(enter_async("cleo"))
    assert ben.does(playing(look)) == "Ann"


def test_inside_a_block(ben: Player, enter_async: Enter) -> None:
    stage = Stage()

    async def stop_in_block(session: AsyncLockingSession) -> None:
        async with session.locked(Order, 1) as order:
            order.total = 7
            await session.flush()
            await stage.stop()

    stage.cancel(ben, stop_in_block)
    assert state_of(ben) == (False, 0, 0)
    assert enter_async("cleo").does(playing(lock_at_once)) == 30  # at once, and rolled back


def test_inside_a_block_in_the_callers_transaction(ben: Player, enter_async: Enter) -> None:
    stage = Stage()

    async def stop_in_block(session: AsyncLockingSession) -> None:
        async with session.begin(), session.locked(Order, 1) as order:
            order.total = 7
            await session.flush()
            await stage.stop()

    stage.cancel(ben, stop_in_block)
    assert state_of(ben) == (False, 0, 0)
    assert enter_async("cleo").does(playing(lock_at_once)) == 30


def test_inside_a_block_and_once_more_while_it_rolls_back(ben: Player, enter_async: Enter) -> None:
    stage = Stage()

    async def stop_in_block(session: AsyncLockingSession) -> None:
        task = asyncio.current_task()
        assert task is not None
        engine = session.get_bind().engine
        event.listen(engine, "rollback", lambda _: task.cancel(), once=True)
        async with session.locked(Order, 1) as order:
            order.total = 7
            await session.flush()
            await stage.stop()

    stage.cancel(ben, stop_in_block)
    assert state_of(ben) == (False, 0, 0)
    assert is_free_soon(enter_async("cleo"))
    assert ben.does(playing(look)) == "Ann"


@pytest.mark.not_databases("sqlite", "mssql")  # whoever has locked the file does not wait any more
def test_while_a_block_waits_to_save(ann: Player, ben: Player, enter_async: Enter) -> None:
    async def change_customer(session: AsyncLockingSession) -> None:
        (await session.get_one(Customer, 1)).name = "Ada"
        await session.flush()

    async def save_both(session: AsyncLockingSession) -> None:
        async with session.locked(Order, 1) as order:
            order.total = 7
            (await session.get_one(Customer, 1)).name = "Ali"

    ann.does(playing(change_customer))
    cancel_while_waiting(ben, ann, save_both)
    assert state_of(ben) == (False, 0, 0)
    ann.does(playing(roll_back))
    cleo = enter_async("cleo")
    assert is_free_soon(cleo)
    assert cleo.does(playing(lock_at_once)) == 30
    assert cleo.does(playing(look)) == "Ann"


@pytest.mark.not_databases("sqlite", "mssql")  # see cancel_while_waiting()
def test_by_a_timeout_of_asyncio(ann: Player, ben: Player, enter_async: Enter) -> None:
    async def not_for_long(session: AsyncLockingSession) -> None:
        await asyncio.wait_for(locks(1)(session), 0.2)

    ann.does(playing(add_ten))
    with pytest.raises(asyncio.TimeoutError):
        ben.does(playing(not_for_long))
    assert state_of(ben) == (False, 0, 0)
    ann.does(playing(roll_back))
    assert is_free_soon(enter_async("cleo"))
    assert ben.does(playing(lock_at_once)) == 30
