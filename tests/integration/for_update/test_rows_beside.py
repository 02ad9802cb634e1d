"""The other rows that a with_for_update() reads are as new as its lock, after a wait too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    column_property,
    contains_eager,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
)

from sa_doclock import LockingSession, LockOptions
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = [
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.read_committed,
]


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "rb_bill"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "bill"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(9), default="bill")
    total: Mapped[int]
    items: Mapped[list[Item]] = relationship(order_by="Item.id", back_populates="bill")


class LateBill(Bill):
    __tablename__ = "rb_late"
    __mapper_args__ = {"polymorphic_identity": "late"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey("rb_bill.id"), primary_key=True)
    fee: Mapped[int]


class Item(Base):
    __tablename__ = "rb_item"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    bill_id: Mapped[int] = mapped_column(sa.ForeignKey("rb_bill.id"))
    value: Mapped[int]
    bill: Mapped[Bill] = relationship(back_populates="items")


Bill.sum_of_items = column_property(
    sa.select(sa.func.sum(Item.value))
    .where(Item.bill_id == Bill.id)
    .correlate(Bill.__table__)
    .scalar_subquery()
)

FIRST = sa.select(Bill).where(Bill.id == 1)
Read = Callable[[LockingSession], Sequence[Bill]]


def _read(statement: Any) -> Read:
    return lambda session: session.scalars(statement).unique().all()


READS: dict[str, Read] = {
    "a subquery of the mapping": _read(FIRST.with_for_update()),
    "joinedload": _read(FIRST.options(joinedload(Bill.items)).with_for_update(of=Bill.__table__)),
    "joinedload of all that is locked": _read(
        FIRST.options(joinedload(Bill.items, innerjoin=True)).with_for_update()
    ),
    "contains_eager": _read(
        FIRST.join(Bill.items)
        .options(contains_eager(Bill.items))
        .with_for_update(of=Bill.__table__)
    ),
    "from_statement": _read(
        sa.select(Bill)
        .from_statement(
            sa.select(Bill, Item)
            .join(Bill.items)
            .where(Bill.id == 1)
            .with_for_update(of=Bill.__table__)
        )
        .options(contains_eager(Bill.items))
    ),
    "selectinload": _read(FIRST.options(selectinload(Bill.items)).with_for_update()),
    "objects of two classes": lambda session: [
        bill
        for bill, _ in session.execute(
            sa.select(Bill, Item).join(Bill.items).where(Bill.id == 1).with_for_update()
        )
    ],
    "Query": lambda session: (
        session.query(Bill)
        .filter_by(id=1)
        .options(joinedload(Bill.items))
        .with_for_update(of=Bill.__table__)
        .all()
    ),
    "get": lambda session: [
        session.get_one(
            Bill, 1, options=[joinedload(Bill.items)], with_for_update={"of": Bill.__table__}
        )
    ],
    "of the root alone": lambda session: session.scalars(
        sa.select(LateBill).with_for_update(of=Bill.__table__)
    ).all(),
}


@pytest.fixture(autouse=True)
def _rows(database: Database) -> None:
    database.create(Base.metadata)
    with LockingSession(database.engine()) as session, session.begin():
        session.add(LateBill(id=1, total=10, fee=1, items=[Item(id=1, value=10)]))


def _change(session: LockingSession) -> None:
    bill = session.get_one_document(LateBill, 1, LockOptions.ForUpdate)
    bill.items[0].value = 11
    bill.items.append(Item(id=2, value=100))
    bill.total, bill.fee = 111, 2
    session.flush()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_it_is_not_older_than_the_lock(
    alice: Actor[LockingSession], bob: Actor[LockingSession], read: Read
) -> None:
    alice.does(_change)
    queued = bob.starts(lambda session: [*map(_seen, read(session))])
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert set(queued.result()) == {(111, 111, 11, 2)}


def _seen(bill: Bill) -> tuple[int, int, int, int]:
    """Return total, sum, the value of the first item, and the fee."""
    total: Any = sa.inspect(bill).dict["total"]
    found: Any = bill
    return total, int(found.sum_of_items), bill.items[0].value, found.fee


def test_members_that_the_program_has_left_out_stay_so(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> list[int]:
        session.add(Item(id=2, bill_id=1, value=100))
        session.commit()
        statement = FIRST.join(Bill.items).where(Item.value > 50).with_for_update()
        bill = session.scalars(statement.options(contains_eager(Bill.items))).unique().one()
        return [item.id for item in bill.items]

    assert bob.does(read) == [2]


def test_all_is_loaded_when_it_returns(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> None:
        (bill,) = READS["joinedload"](session)
        assert {"total", "items", "sum_of_items"} <= sa.inspect(bill).dict.keys()
        assert "value" in sa.inspect(bill.items[0]).dict

    bob.does(read)


def test_a_statement_that_reads_one_table_is_sent_alone(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> None:
        sent: list[str] = []

        def note(*args: Any) -> None:
            sent.append(args[2])

        connection = session.connection()
        sa.event.listen(connection, "before_cursor_execute", note)
        session.scalars(sa.select(Item).where(Item.id == 1).with_for_update()).one()
        session.scalars(sa.select(Bill.id, Bill.total).where(Bill.id == 1).with_for_update()).one()
        assert [one for one in sent if one.startswith("SELECT")] == sent
        assert len(sent) == 2

    bob.does(read)
