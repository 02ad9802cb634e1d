"""Rows that get_or_create_entity() inserts, and the locks of the session afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    StaleDocument,
    UnlockedWrite,
    document,
)
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.creation.test_at_once import all_at_once
from tests.support.databases import Database
from tests.support.models import Account, Contract, Invoice, Lease, Line, Order, Voucher

pytestmark = pytest.mark.quick

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait


def with_lines(*values: int) -> Order:
    lines = [Line(id=100 + value, name="new", value=value) for value in values]
    return Order(total=sum(values), lines=lines)


def statements_of(session: LockingSession, call: Callable[[], Any]) -> list[str]:
    sent: list[str] = []
    connection = session.connection()
    dict(session.held_locks)  # asks once: its user may have ended the transaction

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    sa.event.listen(connection, "before_cursor_execute", note)
    try:
        call()
    finally:
        sa.event.remove(connection, "before_cursor_execute", note)
    return sent


def test_an_object_with_its_parts(session: LockingSession) -> None:
    order, created = session.get_or_create_entity(Order, 7, defaults=lambda: with_lines(4, 5))
    assert created
    assert (order.id, [line.value for line in order.lines]) == (7, [4, 5])
    again = session.get_or_create_entity(Order, 7, defaults=lambda: with_lines(9))
    assert again == (order, False)
    session.save_changes()
    assert session.get_one(Order, 7).total == 9


def test_the_next_ask_sends_nothing_and_another_has_to_wait(
    session: LockingSession, other: LockingSession
) -> None:
    created = session.get_or_create_entity(Order, 7, defaults={"total": 1})[0]
    assert dict(session.held_locks) == {(Order, (7,)): ForUpdate}
    assert statements_of(session, lambda: session.get_entity(Order, 7, ForUpdate)) == []
    assert statements_of(session, lambda: session.get_or_create_entity(Order, 7)) == []
    session.save_changes()
    assert session.get_or_create_entity(Order, 7) == (created, False)
    assert created.total == 1
    with pytest.raises(LockNotAvailable):
        other.get_entity(Order, 7, ForUpdate | NoWait)


def test_each_kind_of_mapping(session: LockingSession) -> None:
    with session.begin():
        lease, _ = session.get_or_create_entity(Lease, 7, defaults={"total": 1, "rent": 2})
        voucher, _ = session.get_or_create_entity(
            Voucher, {"year": 2030, "number": 1}, defaults={"total": 3}
        )
        account, _ = session.get_or_create_entity(Account, 7, defaults={"total": 4})
        contract, _ = session.get_or_create_entity(
            Contract, 8, defaults=lambda: Lease(id=8, total=5, rent=6)
        )
        assert (lease.rent, voucher.year, account.version, type(contract)) == (2, 2030, 1, Lease)
        account.total += 1
    assert session.get_one(Account, 7).version == 2


def test_another_constraint_refuses_it_and_the_transaction_goes_on(
    session: LockingSession,
) -> None:
    calls: list[int] = []

    def without_seller() -> Invoice:
        calls.append(1)
        return Invoice(total=0, customer_id=1)

    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        with pytest.raises(IntegrityError):
            session.get_or_create_entity(Invoice, 7, defaults=without_seller)
        assert len(calls) <= 2
        assert session.get_or_create_entity(Order, 7, defaults={"total": 1})[1]
    assert session.get_one(Order, 1).total == 31


def test_pending_changes_are_flushed_before_and_stay(session: LockingSession) -> None:
    with session.begin():
        session.add(Account(id=7, total=1))
        with pytest.raises(ZeroDivisionError):
            session.get_or_create_entity(Order, 7, defaults=lambda: with_lines(1 // 0))
        assert session.get_or_create_entity(Order, 8, defaults={"total": 2})[1]
    assert session.get_one(Account, 7).total == 1
    assert session.get(Order, 7) is None


def test_a_row_that_is_locked_only_is_not_inserted(
    session: LockingSession, other: LockingSession
) -> None:
    row, created = session.get_or_create_entity(
        Order, "1", ForUpdate | LockOptions.NoKey, defaults=pytest.fail
    )
    assert (row.total, created) == (30, False)
    with pytest.raises(LockNotAvailable):
        other.get_or_create_entity(Order, 1, ForUpdate | NoWait)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"lock": LockOptions.SharedRead}, ValueError, "needs ForUpdate"),
        ({"lock": LockOptions.None_}, ValueError, "needs ForUpdate"),
        ({"lock": ForUpdate | LockOptions.SkipLocked}, ValueError, "needs ForUpdate"),
        ({"defaults": 5}, TypeError, "a function without arguments, or a mapping"),
        ({"defaults": lambda: None}, TypeError, "must return a Order, not None"),
        ({"defaults": {"id": 8, "total": 0}}, ValueError, "primary key 8, but the call asks for 7"),
        ({"defaults": {"no_such": 0}}, TypeError, "no_such"),
    ],
)
def test_what_it_refuses(
    session: LockingSession, how: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        session.get_or_create_entity(Order, 7, **how)
    assert not session.in_transaction()


def test_another_object_that_cannot_be_flushed_is_the_error_of_the_call(
    session: LockingSession,
) -> None:
    session.add(Line(id=1, order_id=1, name="there already", value=1))
    with pytest.raises(IntegrityError):
        session.get_or_create_entity(Order, 7, defaults={"total": 1})


# --------------------------------------------------------------------------------------------------
# get_or_create_entity() of declared documents: the guard knows the new row, its version counts.

CALLERS = 12


class Base(DeclarativeBase):
    pass


def key() -> Mapped[int]:
    """A primary key chosen by the test."""
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("days",), version=True)
class Stock(Base):
    """The stock of an article in a shop: a composite key."""

    __tablename__ = "cr_stock"
    shop: Mapped[int] = key()
    article: Mapped[int] = key()
    version: Mapped[int] = mapped_column()
    number: Mapped[int] = mapped_column(default=0)
    unit: Mapped[str] = mapped_column(sa.String(10), server_default="piece")
    days: Mapped[list[Day]] = relationship(cascade="all, delete-orphan", order_by="Day.id")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Day(Base):
    __tablename__ = "cr_day"
    __table_args__ = (
        sa.ForeignKeyConstraint(["shop", "article"], ["cr_stock.shop", "cr_stock.article"]),
    )
    id: Mapped[int] = key()
    shop: Mapped[int]
    article: Mapped[int]
    number: Mapped[int]


def new_stock() -> Stock:
    """Make a stock with a part, without its key."""
    return Stock(days=[Day(id=1, number=0)])


@pytest.fixture
def sessions(database: Database) -> sessionmaker[LockingSession]:
    """Create the tables, and return a factory at the server's default isolation level."""
    database.create(Base.metadata)
    waits = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
    return sessionmaker(database.engine(pool_size=CALLERS, **waits), class_=LockingSession)


def take(session: LockingSession) -> bool:
    """Get or create the stock, change it and its part, and commit."""
    stock, created = session.get_or_create_entity(
        Stock, (1, 7), defaults=new_stock, lock_timeout=20
    )
    stock.days[0].number += 1
    stock.number += 1
    session.save_changes()
    return created


def test_twelve_at_once_change_it_and_its_part(sessions: sessionmaker[LockingSession]) -> None:
    def call() -> bool:
        with sessions() as session:
            return take(session)

    assert sorted(all_at_once(CALLERS, call)) == [False] * (CALLERS - 1) + [True]
    with sessions() as session:
        stock = session.get_one(Stock, (1, 7))
        assert (stock.number, stock.days[0].number, stock.unit) == (CALLERS, CALLERS, "piece")
        assert stock.version == CALLERS + 1  # the creator's INSERT, and its change


@in_a_loop
async def test_twelve_tasks_at_once(database: Database) -> None:
    database.create(Base.metadata)

    async def call() -> bool:
        async with sessions() as session:
            created: bool = await session.run_sync(take)
            return created

    url = url_for(database, DRIVERS[database.name][0])
    async with connected(url, pool_size=CALLERS) as engine:
        sessions: Any = async_sessionmaker(engine, class_=AsyncLockingSession)
        assert sum(await asyncio.gather(*(call() for _ in range(CALLERS)))) == 1
        async with sessions() as session:
            stock = await session.get_one(Stock, (1, 7))
            assert (stock.number, stock.version) == (CALLERS, CALLERS + 1)


def test_the_guard_knows_the_new_document_and_no_other(
    sessions: sessionmaker[LockingSession],
) -> None:
    with sessions.begin() as session:
        session.add(Stock(shop=1, article=8, days=[Day(id=8, number=0)]))
    with sessions() as session:
        session.get_or_create_entity(Stock, {"shop": 1, "article": 7}, defaults=new_stock)
        session.execute(sa.update(Day).where(Day.id == 1).values(number=5))
        with pytest.raises(UnlockedWrite, match=r"Stock \(1, 8\)"):
            session.execute(sa.update(Day).where(Day.id == 8).values(number=5))
        session.save_changes()
    with sessions() as session:
        assert [session.get_one(Day, n).number for n in (1, 8)] == [5, 0]


def test_its_version_is_compared_afterwards(sessions: sessionmaker[LockingSession]) -> None:
    with sessions() as session:
        stock, created = session.get_or_create_entity(Stock, (1, 7), defaults=new_stock)
        assert (created, stock.version, stock.unit) == (True, 1, "piece")
        session.save_changes()
    with sessions() as session:
        session.get_or_create_entity(Stock, (1, 7))[0].days[0].number += 1
        session.save_changes()
    with sessions() as session:
        with pytest.raises(StaleDocument):
            session.get_entity(Stock, (1, 7), LockOptions.ForUpdate, version=1)
        assert session.get_one_entity(Stock, (1, 7), LockOptions.ForUpdate, version=2)
