"""A cancelled task leaves no lock behind, and a working pool: sqlalchemy issue 12099."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import (
    AsyncLockingSession,
    LockNotAvailable,
    LockOptions,
    async_claim_each,
    async_lease_each,
    async_run_transaction,
    checkout_table,
    document,
)
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.asyncio.plays import (
    CancelledAt,
    Player,
    Stage,
    add_ten,
    cancel_while_waiting,
    lock_at_once,
    locks,
    look,
    playing,
    roll_back,
    state_of,
)
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order


def is_free_soon(player: Player) -> bool:
    """Return whether order 1 can be locked.

    A server notices a disconnected waiter only when it grants the lock, and then frees it at once.
    A leaked lock stays.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            player.does(playing(lock_at_once))
        except LockNotAvailable:
            continue
        return True
    return False


async def outcomes_of_cancelling(play: Callable[[], Coroutine[Any, Any, object]]) -> list[object]:
    """Cancel a play at each of its waits in turn; return each outcome other than CancelledError."""
    wrong: list[object] = []
    for number in itertools.count(1):
        cancelled = CancelledAt(play(), number)

        async def run(played: CancelledAt = cancelled) -> None:
            await played

        task = asyncio.create_task(run())
        await asyncio.wait([task])
        if cancelled.waits < number:
            task.result()
            return wrong
        if not task.cancelled():
            wrong.append((number, task.exception()))
    raise AssertionError


ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait


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
    assert enter_async("cleo").does(playing(lock_at_once)) == 30  # rolled back


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


@pytest.mark.not_databases("sqlite", "mssql")  # there the holder of the file's lock no longer waits
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


# --------------------------------------------------------------------------------------------------
# A task cancelled at any wait ends with CancelledError and leaves nothing behind.
#
# The waits include the library's own questions to the server and the cleanup after them.
# Each run uses an engine that has not connected yet, so the library asks every question.

# aioodbc and aiosqlite: a thread continues the statement of a cancelled task.


class Base(DeclarativeBase):
    pass


@document(checkout=True)
class Paper(Base):
    __tablename__ = "cancelled_paper"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


CHECKOUTS = checkout_table(Base.metadata)
PAPERS = sa.select(Paper)
ORDERS = sa.select(Order).where(Order.total >= 0)


class Play:
    """The sessions of one engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    def session(self, **options: Any) -> AsyncLockingSession:
        return AsyncLockingSession(self.engine, **options)


async def reads(play: Play) -> None:
    async with play.session() as session:
        await session.execute(sa.select(Customer.name))
        await session.commit()


async def locks_and_saves(play: Play) -> None:
    async with play.session() as session:
        order = await session.get_one_document(Order, 1, ForUpdate, lock_timeout=20)
        order.lines[0].value += 1
        await session.commit()


async def locks_again_after_a_text(play: Play) -> None:
    async with play.session() as session, session.begin():
        await session.get_one_entity(Order, 1, ForUpdate)
        await session.execute(sa.text("SELECT 1"))
        await session.get_one_entity(Order, 2, ForUpdate)
        await session.execute(sa.text("SELECT 1"))


async def asks_of_a_savepoint(play: Play) -> None:
    async with play.session() as session, session.begin():
        await session.get_one_entity(Order, 1, ForUpdate)
        async with session.begin_nested():
            await session.get_one_entity(Order, 2, ForUpdate)
            await session.execute(sa.text("SELECT 1"))


async def saves_in_a_block(play: Play) -> None:
    async with play.session() as session, session.locked_document(Order, 1) as order:
        order.total += 1


async def reads_a_snapshot(play: Play) -> None:
    async with play.session() as session:
        await session.get_one_document(Order, 1, LockOptions.SnapshotRead)


async def adopts(play: Play) -> None:
    async with play.session() as session:
        (await session.scalars(sa.select(Order).where(Order.id == 1).with_for_update())).one()


async def creates(play: Play) -> None:
    async with play.session() as session:
        await session.get_or_create_entity(Order, 77, ForUpdate, defaults={"total": 0})


async def locks_a_key(play: Play) -> None:
    async with play.session() as session:
        await session.lock_key("a name", lock_timeout=20)
        await session.commit()


async def tries_as_a_batch(play: Play) -> None:
    async with play.session(priority="batch") as session, session.begin():
        await session.get_one_entity(Order, 1, ForUpdate, lock_timeout=20)
        await session.get_one_entity(Order, 2, ForUpdate | NoWait)


async def claims(play: Play) -> None:
    async with async_claim_each(play.session, ORDERS, limit=3, batch=2) as claimed:
        async for claim in claimed:
            async with claim as order:
                order.total += 1


async def leases(play: Play) -> None:
    def session() -> AsyncLockingSession:
        return play.session(checkouts=CHECKOUTS)

    async for lease in async_lease_each(session, PAPERS, owner="me", limit=1):
        async with lease:
            pass


async def checks_out(play: Play) -> None:
    async with play.session(checkouts=CHECKOUTS) as session:
        checkout = await session.check_out(Paper, 1, owner="ann")
        await session.commit()
        await session.check_in(checkout)
        await session.commit()


async def commits_a_function(play: Play) -> None:
    async def change(session: AsyncLockingSession) -> None:
        order = await session.get_one_entity(Order, 1, ForUpdate)
        order.total += 1
        session.on_commit(lambda: reads(play))

    await async_run_transaction(play.session, change)


PLAYS = [
    *(reads, locks_and_saves, locks_again_after_a_text, asks_of_a_savepoint, saves_in_a_block),
    *(reads_a_snapshot, adopts, creates, locks_a_key, tries_as_a_batch, claims, leases),
    *(checks_out, commits_a_function),
]


@pytest.fixture
def refilled(documents: Database) -> Iterator[Database]:
    """Add a table of check-outs beside the documents."""
    engine = documents.engine()
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Paper).values(id=1))
    yield documents
    with engine.begin() as connection:
        connection.execute(sa.delete(Line).where(Line.order_id == 77))
        connection.execute(sa.delete(Order).where(Order.id == 77))
    Base.metadata.drop_all(engine)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("refilled")
@pytest.mark.parametrize("play", PLAYS)
@in_a_loop
async def test_it_ends_with_its_cancellation(
    url: sa.URL, play: Callable[[Play], Awaitable[None]]
) -> None:
    left: list[object] = []

    async def on_a_new_engine() -> None:
        async with connected(url, isolation_level="READ COMMITTED") as engine:
            try:
                await play(Play(engine))
            finally:
                left.append(engine.pool.checkedout())  # type: ignore[attr-defined]

    assert not await outcomes_of_cancelling(on_a_new_engine)
    assert left == [0] * len(left)
