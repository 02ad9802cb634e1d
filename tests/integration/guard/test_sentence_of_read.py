"""UnlockedWrite tells where the row was read without the required lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, UnlockedWrite
from tests.integration.guard.models import Contract, Customer, Lease, Line, Order, Tag
from tests.support.databases import Database

ForUpdate = LockOptions.ForUpdate


MakeSession = Callable[..., LockingSession]


@pytest.fixture
def make_session(make_session: MakeSession) -> MakeSession:
    """Return a maker of sessions that trace their reads."""
    return partial(make_session, guard_tracing=True)


@pytest.fixture
def session(make_session: MakeSession) -> LockingSession:
    """Make a session that traces its reads."""
    return make_session()


def sentence_of_read(session: LockingSession) -> str:
    """Return the sentence of the refused flush that says where the row was read."""
    with pytest.raises(UnlockedWrite) as caught:
        session.flush()
    _, _, sentence = str(caught.value.args[0]).partition("LockOptions.ForUpdate).")
    return sentence.strip()


def here(function: Callable[..., Any], offset: int) -> str:
    """Return the display of the line this far below a function's ``def``."""
    code = function.__code__
    return f", at {code.co_filename}:{code.co_firstlineno + offset} in {code.co_name}."


def select_order(session: LockingSession) -> Any:
    return session.scalars(sa.select(Order).where(Order.total > 20)).one()


def get_order(session: LockingSession) -> Any:
    return session.get_one(Order, 1)


def get_entity_without_a_lock(session: LockingSession) -> Any:
    return session.get_entity(Order, 1)


def query_order(session: LockingSession) -> Any:
    return session.query(Order).filter_by(id=1).one()


def refresh_order(session: LockingSession) -> Any:
    order = session.get_one(Order, 1)
    session.expire(order)
    return order.total and order


def load_lazily(session: LockingSession) -> Any:
    order = session.get_one(Order, 1)
    return order.lines[0]


READERS: dict[str, tuple[Callable[[LockingSession], Any], str, int]] = {
    "select": (select_order, "gd_order.total >", 1),
    "get": (get_order, "FROM gd_order", 1),
    "get_entity": (get_entity_without_a_lock, "FROM gd_order", 1),
    "query": (query_order, "FROM gd_order", 1),
    "refresh": (refresh_order, "FROM gd_order", 3),
    "lazy load": (load_lazily, "FROM gd_line", 2),
}
each_reader = pytest.mark.parametrize(("read", "words", "offset"), READERS.values(), ids=READERS)


def change(read: Any) -> None:
    if isinstance(read, Line):
        read.value += 1
    else:
        read.total += 1


@each_reader
def test_the_statement_is_reported(
    session: LockingSession, read: Callable[[LockingSession], Any], words: str, offset: int
) -> None:
    change(found := read(session))
    sentence = sentence_of_read(session)
    assert sentence.startswith("It was read without the lock by SELECT gd_")
    assert words in sentence
    assert found
    assert offset


@each_reader
def test_the_line_is_reported_too(
    make_session: MakeSession, read: Callable[[LockingSession], Any], words: str, offset: int
) -> None:
    session = make_session()
    change(found := read(session))
    sentence = sentence_of_read(session)
    assert sentence.endswith(here(read, offset))
    assert words in sentence
    assert found


def test_nothing_is_reported_without_tracing(make_session: MakeSession) -> None:
    session = make_session(guard_tracing=False)
    change(get_order(session))
    assert sentence_of_read(session) == ""


@pytest.mark.parametrize(
    ("entity", "lock"),
    [
        (Order, ForUpdate),
        (Order, LockOptions.SharedRead),
        (Lease, ForUpdate),
        (Contract, ForUpdate),
    ],
)
def test_a_row_read_under_a_lock_that_has_ended(
    make_session: MakeSession, entity: Any, lock: LockOptions
) -> None:
    session = make_session(expire_on_commit=False)
    order = session.get_one_entity(entity, 1, lock)
    session.commit()
    order.total += 1
    assert sentence_of_read(session).startswith("It was read under a lock that has been released")


def test_a_row_of_a_set_read_under_a_lock_that_has_ended(make_session: MakeSession) -> None:
    session = make_session(expire_on_commit=False)
    orders = session.scalars(session.entity_set(Order, ForUpdate)).all()
    session.commit()
    orders[0].total += 1
    assert sentence_of_read(session).startswith("It was read under a lock that has been released")


def test_a_row_read_again_after_the_lock_has_ended(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.commit()
    order.total += 1  # reloads it: the commit expired it
    assert sentence_of_read(session).startswith("It was read without the lock")


def test_a_line_read_while_its_order_was_locked(make_session: MakeSession) -> None:
    session = make_session(expire_on_commit=False)
    line = session.get_one_entity(Order, 1, ForUpdate).lines[0]
    session.commit()
    line.value += 1
    assert "gd_line" in sentence_of_read(session)


def lock_in_a_block(session: LockingSession) -> Any:
    with session.locked(Order, 1) as order:
        return order


def test_a_row_read_by_locked_is_reported_at_the_line_of_the_block(
    make_session: MakeSession,
) -> None:
    session = make_session(expire_on_commit=False)
    order = lock_in_a_block(session)
    order.total += 1
    assert sentence_of_read(session).endswith(here(lock_in_a_block, 1))


def test_nothing_is_reported_of_a_new_row(session: LockingSession) -> None:
    session.add(Line(id=9, order_id=1))
    assert sentence_of_read(session) == ""


def test_nothing_is_reported_of_a_row_that_another_session_has_made(
    make_session: MakeSession,
) -> None:
    first, second = make_session(), make_session(expire_on_commit=False)
    second.add(line := Order(id=9, total=1))
    second.commit()
    second.expunge(line)
    first.add(line)
    line.total = 2
    assert sentence_of_read(first) == ""


def test_nothing_is_reported_of_a_row_under_a_read_lock(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.SharedRead)
    order.total = 31
    assert sentence_of_read(session) == ""


def test_of_the_row_that_is_changed_not_of_its_header(session: LockingSession) -> None:
    order, line = session.get_one(Order, 1), session.get_one(Line, 1)
    line.value = 11
    assert "FROM gd_line" in sentence_of_read(session)
    assert order.total == 30


def test_a_link_is_reported_too(session: LockingSession) -> None:
    customer, order = session.get_one(Customer, 2), session.get_one(Order, 1)
    customer.orders.append(order)
    assert "FROM gd_order" in sentence_of_read(session)
    session.rollback()
    tag = session.get_one(Tag, 2)
    tag.orders.append(order)
    assert "FROM gd_order" in sentence_of_read(session)


async def read_in_a_coroutine(session: AsyncLockingSession) -> Any:
    return await session.get_one(Order, 1)


async def lock_in_an_async_block(session: AsyncLockingSession) -> Any:
    async with session.locked(Order, 1) as order:
        return order


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("read", [read_in_a_coroutine, lock_in_an_async_block])
def test_the_line_of_a_coroutine_is_reported(
    documents: Database, read: Callable[[AsyncLockingSession], Any]
) -> None:
    async def main() -> str:
        engine = create_async_engine(sa.make_url(documents.url).set(drivername="sqlite+aiosqlite"))
        options: dict[str, Any] = {"guard_tracing": True, "expire_on_commit": False}
        async with AsyncLockingSession(engine, **options) as session:
            order = await read(session)
            order.total += 1
            with pytest.raises(UnlockedWrite) as caught:
                await session.flush()
        await engine.dispose()
        return str(caught.value.args[0])

    assert asyncio.run(main()).endswith(here(read, 1))


# --------------------------------------------------------------------------------------------------
# UnlockedWrite names rows that one statement object read, each with its own time.

by_key = sa.select(Order).where(Order.id == sa.bindparam("key"))


def test_it_learns_of_each_row_whether_a_lock_was_held_then(make_session: MakeSession) -> None:
    session = make_session(expire_on_commit=False)
    held = session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    under = session.scalars(by_key, {"key": 2}).one()
    session.commit()
    after = session.scalars(by_key, {"key": 1}).one()
    under.total += 1
    assert sentence_of_read(session).startswith("It was read by SELECT")
    session.expire(under)
    after.total += 1
    assert sentence_of_read(session).startswith("It was read without the lock by SELECT")
    assert held


def read_both(session: LockingSession) -> tuple[Order, Order]:
    first = session.scalars(by_key, {"key": 1}).one()
    second = session.scalars(by_key, {"key": 2}).one()
    return first, second


def test_with_guard_tracing_each_row_has_its_own_line(make_session: MakeSession) -> None:
    session = make_session(guard_tracing=True)
    first, second = read_both(session)
    second.total += 1
    assert sentence_of_read(session).endswith(here(read_both, 2))
    session.expire(second)
    first.total += 1
    assert sentence_of_read(session).endswith(here(read_both, 1))
