"""get_or_create_entity() of declared documents: the guard knows the new row, and its version counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockOptions,
    StaleDocument,
    UnlockedWrite,
    document,
)
from tests.integration.asyncio.drivers import DRIVERS, connected, in_a_loop, url_for
from tests.integration.creation.callers import all_at_once
from tests.support.databases import Database

CALLERS = 12


class Base(DeclarativeBase):
    pass


def key() -> Mapped[int]:
    """A primary key that the tests choose."""
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("days",), version=True)
class Stock(Base):
    """Of an article in a shop: a composite key."""

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
    """Make one with a part, and without its key."""
    return Stock(days=[Day(id=1, number=0)])


@pytest.fixture
def sessions(database: Database) -> sessionmaker[LockingSession]:
    """Make the tables, and sessions of the server's own isolation level."""
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
