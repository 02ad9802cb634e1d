"""Rows that were read ahead are used only while a read would give the same now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects.postgresql.pipelined_lock import PipelinedLock
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Bill, Item
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.integration.timeouts.wire import Wire
from tests.support.poolers import COUNTS_ROUND_TRIPS

pytestmark = ON_POSTGRESQL

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
both = pytest.mark.parametrize("pipeline", [False, True])


def values(session: Session) -> list[int] | None:
    bill = session.get_document(Bill, 1, ForUpdate)
    return None if bill is None else [item.value for item in bill.items]


@pytest.fixture
def on_load() -> Iterator[Callable[[Callable[[Session], object]], None]]:
    """Return what has a function run when a bill is loaded."""
    listening: list[Callable[..., None]] = []

    def add(function: Callable[[Session], object]) -> None:
        def hear(_target: object, context: Any) -> None:
            function(context.session)

        event.listen(Bill, "load", hear)
        listening.append(hear)

    yield add
    for hear in listening:
        event.remove(Bill, "load", hear)


@both
def test_not_after_a_statement_that_has_written(
    make: Sessions, on_load: Callable[[Callable[[Session], object]], None], pipeline: bool
) -> None:
    on_load(lambda session: session.connection().execute(sa.update(Item).values(value=77)))
    assert values(make(pipeline=pipeline)) == [77, 77]


@both
def test_not_of_a_document_that_is_not_there(make: Sessions, pipeline: bool) -> None:
    session = make(pipeline=pipeline)
    assert session.get_document(Bill, 99, ForUpdate) is None
    assert values(session) == [10, 20]


@COUNTS_ROUND_TRIPS
def test_not_for_another_document(wire: Wire, session: Session) -> None:
    assert values(session) == [10, 20]
    with wire.counting() as counted:
        second = session.get_document(Bill, 2, ForUpdate)
    assert second is not None
    assert second.items == []
    assert counted == [1]


LOCKS_OF_LISTENERS: dict[str, Callable[[Session], object]] = {
    "another document": lambda session: session.get_document(Bill, 2, ForUpdate),
    "keys": lambda session: session.get_entities(Bill, [2], ForUpdate),
    "a set": lambda session: session.scalars(session.entity_set(Bill, ForUpdate)).all(),
    "a name": lambda session: session.lock_key("a name"),
}


@both
@pytest.mark.parametrize("lock", LOCKS_OF_LISTENERS.values(), ids=LOCKS_OF_LISTENERS)
def test_a_listener_may_lock_while_the_parts_are_read(
    make: Sessions, lock: Callable[[Session], object], pipeline: bool
) -> None:
    session, locked = make(pipeline=pipeline), list[bool]()

    def hear(_item: Item, context: Any) -> None:
        if not locked:
            locked.append(True)
            lock(context.session)

    event.listen(Item, "load", hear)
    try:
        assert values(session) == [10, 20]
    finally:
        event.remove(Item, "load", hear)
    assert locked
    session.commit()
    assert values(session) == [10, 20]


class Next(sa.TypeDecorator[int]):
    """A type whose values the driver does not get as they are."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> Any:
        return value + 1


@COUNTS_ROUND_TRIPS
def test_by_a_value_that_its_type_processes(wire: Wire, engine: sa.Engine) -> None:
    read = sa.select(Item.value).where(Item.bill_id == sa.bindparam("bill", type_=Next()))
    lock = sa.select(Bill.id).where(Bill.id == 1).with_for_update()
    with engine.connect() as connection:
        travels = PipelinedLock(connection, None, lambda: [(read, {"bill": 0})])
        with wire.counting() as counted, travels:
            connection.execute(lock).all()
            assert sorted(connection.scalars(read, {"bill": 0})) == [10, 20]
    assert counted == [1]


def test_after_a_failure_nothing_of_it_is_left(
    session: Session, elsewhere: sa.Engine, engine: sa.Engine
) -> None:
    with elsewhere.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.execute(sa.select(Bill).where(Bill.id == 1).with_for_update())
        with pytest.raises(LockNotAvailable):
            session.get_document(Bill, 1, ForUpdate, lock_timeout=0.05)
        connection.exec_driver_sql("ROLLBACK")
    with engine.connect() as pooled:
        driver: Any = pooled.connection.driver_connection
        assert driver.cursor_factory.__module__ == "psycopg"
    with elsewhere.connect() as connection:
        connection.execute(sa.update(Item).values(value=5))
    assert values(session) == [5, 5]


@COUNTS_ROUND_TRIPS
@in_a_loop
async def test_under_asyncio_as_well(wire: Wire, engine: sa.Engine) -> None:
    async with (
        connected(engine.url, pool_size=1, max_overflow=0) as through,
        AsyncLockingSession(through, pipeline=True) as session,
    ):
        await session.get_entity(Bill, 1, ForUpdate)
        await session.rollback()
        with wire.counting() as counted:
            bill = await session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5)
            assert bill is not None
            bill.total = 1
            bill.items[0].value = 1
            await session.save_changes()
    assert counted == [2]
