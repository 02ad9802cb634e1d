"""``with session.unguarded():`` for migrations and imports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import AsyncLockingSession, LockingSession, UnlockedWrite, UnlockedWriteWarning
from tests.integration.guard.models import Line, Order, Tag
from tests.integration.guard.steps import pending, refused
from tests.support.databases import Database

pytestmark = pytest.mark.quick

Stored = Callable[[Any, Any], Any]


def test_what_is_written_in_the_block_needs_no_lock(
    session: LockingSession, stored: Stored
) -> None:
    with session.unguarded():
        line = session.get_one(Line, 1)
        line.value = 11
        session.flush()
        session.execute(sa.update(Line).where(Line.id == 3).values(value=0))
        session.bulk_insert_mappings(Line, [{"id": 8, "order_id": 1}])
        session.add(Line(id=9, order_id=2))
        session.delete(session.get_one(Line, 2))
    assert not pending(session)  # flushed at the end, unguarded
    session.commit()
    assert stored(Line.value, 1) == 11
    assert stored(Line.value, 3) == 0
    assert stored(Line.id, 2) is None


def test_what_was_changed_before_it_is_guarded(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 11
    entered = []
    with refused(session, Order, 1), session.unguarded():
        entered.append(True)
    assert not entered
    assert pending(session) == {line}


def test_what_is_changed_after_it_is_guarded(session: LockingSession) -> None:
    with session.unguarded():
        line = session.get_one(Line, 1)
        line.value = 11
    line.value = 12
    with refused(session, Order, 1):
        session.flush()


def test_an_exception_ends_it_without_a_flush(session: LockingSession) -> None:
    line = session.get_one(Line, 1)

    def fail() -> None:
        with session.unguarded():
            line.value = 11
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert pending(session) == {line}
    with refused(session, Order, 1):
        session.flush()


def test_a_refusal_at_its_start_leaves_the_guard_up(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 11
    for _ in range(2):
        with pytest.raises(UnlockedWrite), session.unguarded():
            pass


def test_blocks_in_blocks(session: LockingSession) -> None:
    with session.unguarded():
        line = session.get_one(Line, 1)
        with session.unguarded():
            line.value = 11
        line.value = 12
    line.value = 13
    with refused(session, Order, 1):
        session.flush()


def test_a_failed_flush_at_its_end_leaves_the_guard_up(session: LockingSession) -> None:
    with pytest.raises(sa.exc.IntegrityError), session.unguarded():
        session.add(Tag(id=1, name="twice"))
    session.rollback()
    line = session.get_one(Line, 1)
    line.value = 11
    with refused(session, Order, 1):
        session.flush()


def test_documents_of_the_block_are_this_transactions(session: LockingSession) -> None:
    with session.unguarded():
        session.add(order := Order(id=9))
    order.total = 1  # nobody else can see it yet
    session.commit()
    order.total = 2
    with refused(session, Order, 9):
        session.flush()


def test_a_statement_in_the_block_makes_new_documents_too(session: LockingSession) -> None:
    with session.unguarded():
        session.execute(sa.insert(Order).values(id=9))
    session.add(Line(id=9, order_id=9))
    session.commit()


def test_a_warning_at_its_start_is_reported_at_the_line_of_the_block(
    make_session: Callable[..., LockingSession],
) -> None:
    session = make_session(guard="warn")
    line = session.get_one(Line, 1)
    line.value = 11
    with pytest.warns(UnlockedWriteWarning) as caught, session.unguarded():
        pass
    assert [warning.filename for warning in caught] == [__file__]


async def await_all_of_it(session: AsyncLockingSession) -> None:
    line = await session.get_one(Line, 1)
    line.value = 11
    with pytest.raises(UnlockedWrite):
        await session.flush()
    with pytest.raises(UnlockedWrite):
        await session.unguarded().__aenter__()
    await session.rollback()
    async with session.unguarded():
        line = await session.get_one(Line, 1)
        line.value = 12
    assert not session.dirty
    with pytest.raises(KeyError):
        await fail_in_the_block(session, line)
    with pytest.raises(UnlockedWrite):
        await session.flush()
    line.value = 12
    await session.commit()


async def fail_in_the_block(session: AsyncLockingSession, line: Line) -> None:
    async with session.unguarded():
        line.value = 13
        raise KeyError


@pytest.mark.databases("sqlite")
def test_it_is_awaited_in_an_async_session(documents: Database, stored: Stored) -> None:
    async def main() -> None:
        engine = create_async_engine(sa.make_url(documents.url).set(drivername="sqlite+aiosqlite"))
        async with AsyncLockingSession(engine) as session:
            await await_all_of_it(session)
        await engine.dispose()

    asyncio.run(main())
    assert stored(Line.value, 1) == 12
