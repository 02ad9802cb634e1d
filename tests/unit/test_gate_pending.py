"""The changes of a function of gate.run(): in doubt, something was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_doclock.features.gate.pending import is_same, may_write, pending_changes
from tests.support.rows import rows


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    data: Mapped[dict[str, int]] = mapped_column(MutableDict.as_mutable(sa.JSON), default=dict)
    items: Mapped[list[Item]] = relationship(back_populates="bill", cascade="all, delete-orphan")


class Item(Base):
    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    bill_id: Mapped[int] = mapped_column(sa.ForeignKey("bill.id"))
    value: Mapped[int] = mapped_column(default=0)
    bill: Mapped[Bill] = relationship(back_populates="items")


@pytest.fixture
def session() -> Iterator[Session]:
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Bill(id=1, data={"a": 1}, items=[Item(id=1), Item(id=2)]))
        session.commit()
        yield session
    engine.dispose()


def nothing(_session: Session, _bill: Bill) -> None: ...


def read(session: Session, bill: Bill) -> None:
    session.get_one(Item, 2)
    assert bill.items
    assert bill.data


def set_total(_session: Session, bill: Bill) -> None:
    bill.total += 7


def set_in_data(_session: Session, bill: Bill) -> None:
    bill.data["a"] = bill.data.get("a", 0) + 1


def append(_session: Session, bill: Bill) -> None:
    bill.items.append(Item(value=1))


def remove(_session: Session, bill: Bill) -> None:
    bill.items.pop()


def move(_session: Session, bill: Bill) -> None:
    bill.items[0].bill = Bill(total=0)


def set_in_new(_session: Session, bill: Bill) -> None:
    bill.items[-1].value += 1


def delete(session: Session, bill: Bill) -> None:
    session.delete(bill.items[0])


CHANGES = (set_total, set_in_data, append, remove, move, set_in_new, delete)
Function = Callable[[Session, Bill], None]


@pytest.mark.parametrize("first", [nothing, *CHANGES])
@pytest.mark.parametrize("then", CHANGES)
def test_a_change_is_seen_whatever_is_pending(
    session: Session, first: Function, then: Function
) -> None:
    if first is then is delete:
        pytest.skip("the second time it changes nothing")
    bill = session.get_one(Bill, 1)
    with session.no_autoflush:
        first(session, bill)
        before = pending_changes(session)
        then(session, bill)
        assert not is_same(before, pending_changes(session))


@pytest.mark.parametrize("first", [one for one in CHANGES if one is not set_in_data])
def test_without_one_nothing_is_seen(session: Session, first: Function) -> None:
    bill = session.get_one(Bill, 1)
    with session.no_autoflush:
        first(session, bill)
        before = pending_changes(session)
        read(session, bill)
        assert is_same(before, pending_changes(session))


READS: tuple[Any, ...] = (
    sa.select(Bill),
    sa.select(sa.func.count()).select_from(Bill),
    sa.select(sa.func.coalesce(sa.func.sum(Item.value), 0)),
    sa.select(Bill.id).where(sa.text("total > 1")).union(sa.select(Item.id)),
)
WRITES: tuple[Any, ...] = (
    sa.update(Bill).values(total=1),
    sa.insert(Bill).values(total=1),
    sa.text("SELECT 1"),
    sa.select(sa.func.setval("a_seq", 1)),
    sa.select(Bill).where(sa.exists().where(Item.value == sa.func.book(1))),
    sa.select(sa.literal_column("book(1)")),
    sa.select(Bill).where(sa.text("book(1) > 0")),
    sa.select(sa.insert(Bill).values(total=1).returning(Bill.id).cte()),
    sa.select(Bill).add_cte(sa.delete(Item).cte()),
    sa.schema.CreateTable(Bill.metadata.tables["bill"]),
)


@rows("statement", READS)
def test_what_reads(statement: Any) -> None:
    assert not may_write(statement.compile())


@rows("statement", WRITES)
def test_what_may_write(statement: Any) -> None:
    assert may_write(statement.compile())


def test_a_text_that_sqlalchemy_has_not_read_may_write() -> None:
    assert may_write(None)
