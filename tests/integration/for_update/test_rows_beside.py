"""The other rows that a with_for_update() reads are as fresh as its lock, even after a wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    column_property,
    contains_eager,
    defer,
    joinedload,
    mapped_column,
    query_expression,
    raiseload,
    relationship,
    selectinload,
    with_expression,
    with_loader_criteria,
)

from sa_doclock import LockingSession, LockOptions, WrongIsolation, document
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = [
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.read_committed,
]


class Base(DeclarativeBase):
    pass


@document(parts=("items", "items.taxes"))
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
    shop_id: Mapped[int] = mapped_column(sa.ForeignKey("rb_shop.id"), default=1)
    remark: Mapped[str] = mapped_column(sa.String(9), default="none", deferred=True)
    bill: Mapped[Bill] = relationship(back_populates="items")
    shop: Mapped[Shop] = relationship()
    taxes: Mapped[list[Tax]] = relationship(order_by="Tax.id", back_populates="item")


class Tax(Base):
    __tablename__ = "rb_tax"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    item_id: Mapped[int] = mapped_column(sa.ForeignKey("rb_item.id"))
    value: Mapped[int]
    item: Mapped[Item] = relationship(back_populates="taxes")


class Shop(Base):
    __tablename__ = "rb_shop"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(sa.String(9))


Bill.sum_of_items = column_property(
    sa.select(sa.func.sum(Item.value))
    .where(Item.bill_id == Bill.id)
    .correlate(Bill.__table__)
    .scalar_subquery()
)

Bill.given = query_expression()


class Summed(Base):
    """The same table, with a column computed by a database function."""

    __table__ = Bill.__table__
    __mapper_args__ = {"exclude_properties": ["kind"]}  # noqa: RUF012
    summed: Mapped[int] = column_property(sa.func.rb_sum(Bill.__table__.c.id))


GIVEN_OF: Any = Bill
SUM_OF_ITEMS: Any = sa.inspect(Bill).attrs["sum_of_items"].class_attribute
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
        session.add_all([Shop(id=1, name="one"), Shop(id=2, name="two")])
        session.flush()
        item = Item(id=1, value=10, taxes=[Tax(id=1, value=1)])
        session.add(LateBill(id=1, total=10, fee=1, items=[item]))


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


def _sum_of(bill: Any) -> Any:
    return sa.select(sa.func.sum(Item.value)).where(Item.bill_id == bill.id).scalar_subquery()


OTHER: Any = aliased(Bill)
GIVEN: dict[str, tuple[sa.Select[Any], Any]] = {
    "class": (FIRST, GIVEN_OF),
    "limit": (FIRST.order_by(Bill.total).limit(1), GIVEN_OF),
    "alias": (sa.select(OTHER).where(OTHER.id == 1), OTHER),
}


@pytest.mark.parametrize("statement", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("dirty", [False, True])
def test_what_with_expression_gives_is_not_older_than_the_lock(
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    statement: tuple[sa.Select[Any], Any],
    *,
    dirty: bool,
) -> None:
    select, entity = statement

    def read(session: LockingSession) -> tuple[int, int]:
        shop = session.get_one(Shop, 1)
        if dirty:
            shop.name = "mine"
        with session.no_autoflush:
            given = with_expression(entity.given, _sum_of(entity))
            bill = session.scalars(select.options(given).with_for_update()).one()
            return sa.inspect(bill).dict["given"], sa.inspect(bill).dict["total"]

    alice.does(_change)
    queued = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert queued.result() == (111, 111)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("ours", [False, True], ids=["adopted", "get_entity"])
def test_what_a_function_of_the_database_has_read_is_not_older_than_the_lock(
    alice: Actor[LockingSession], bob: Actor[LockingSession], database: Database, *, ours: bool
) -> None:
    with database.engine().begin() as connection:
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION rb_sum(integer) RETURNS bigint LANGUAGE plpgsql STABLE AS "
            "'BEGIN RETURN (SELECT sum(value) FROM rb_item WHERE bill_id = $1); END'"
        )

    def read(session: LockingSession) -> int:
        if ours:
            return int(session.get_one_entity(Summed, 1, LockOptions.ForUpdate).summed)
        return int(session.scalars(sa.select(Summed).with_for_update()).one().summed)

    alice.does(_change)
    queued = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert queued.result() == 111


OF_BILL = FIRST.with_for_update(of=Bill.__table__)
JOINED = joinedload(Bill.items)
JOINED_TAXES = JOINED.joinedload(Item.taxes)
NARROWED: dict[str, sa.Select[Any]] = {
    "contains_eager": OF_BILL.join(Bill.items)
    .where(Item.value > 50)
    .options(contains_eager(Bill.items).joinedload(Item.taxes)),
    "contains_eager below": OF_BILL.outerjoin(Bill.items.and_(Item.value > 50))
    .outerjoin(Item.taxes)
    .options(contains_eager(Bill.items).contains_eager(Item.taxes)),
    "and_()": OF_BILL.options(joinedload(Bill.items.and_(Item.value > 50)).joinedload(Item.taxes)),
    "with_loader_criteria": OF_BILL.options(
        JOINED_TAXES, with_loader_criteria(Item, Item.value > 50)
    ),
}


@pytest.mark.parametrize("statement", NARROWED.values(), ids=NARROWED)
def test_members_that_the_program_has_left_out_stay_so(
    bob: Actor[LockingSession], statement: sa.Select[Any]
) -> None:
    def read(session: LockingSession) -> list[tuple[int, list[int]]]:
        session.get_one_entity(Bill, 1, LockOptions.ForUpdate)
        session.add(Item(id=2, bill_id=1, value=100, taxes=[Tax(id=2, value=1)]))
        session.commit()
        bill = session.scalars(statement).unique().one()
        return [(item.id, [tax.id for tax in item.taxes]) for item in bill.items]

    assert bob.does(read) == [(2, [2])]


@pytest.mark.parametrize("statement", NARROWED.values(), ids=NARROWED)
def test_members_that_came_during_the_wait_are_there_where_the_program_wants_them(
    alice: Actor[LockingSession], bob: Actor[LockingSession], statement: sa.Select[Any]
) -> None:
    def change(session: LockingSession) -> None:
        bill = session.get_one_document(LateBill, 1, LockOptions.ForUpdate)
        bill.items.append(Item(id=2, value=60, taxes=[Tax(id=2, value=1)]))
        session.commit()
        bill = session.get_one_document(LateBill, 1, LockOptions.ForUpdate)
        bill.items.append(Item(id=3, value=100, taxes=[Tax(id=3, value=1)]))
        bill.items.append(Item(id=4, value=9))
        session.flush()

    def read(session: LockingSession) -> list[tuple[int, list[int]]]:
        bill = session.scalars(statement).unique().one()
        return [(item.id, [tax.id for tax in item.taxes]) for item in bill.items]

    alice.does(change)
    queued = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert sorted(queued.result()) == [(2, [2]), (3, [3])]


@pytest.mark.databases("mysql")
@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        FIRST.options(joinedload(Bill.items)),
        FIRST.join(Bill.items).where(Item.value > 5).options(contains_eager(Bill.items)),
    ],
    ids=["joinedload", "contains_eager"],
)
def test_a_lock_after_an_older_snapshot_is_refused(
    make_session: Callable[..., LockingSession],
    alice: Actor[LockingSession],
    statement: sa.Select[Any],
    *,
    overwrites: bool,
) -> None:
    session = make_session(isolation_level="REPEATABLE READ")
    session.scalars(sa.select(Shop.id)).all()  # from now on its plain reads are of this moment
    alice.does(_change)
    alice.does(lambda session: session.commit())
    locking = statement.execution_options(populate_existing=overwrites).with_for_update()
    with pytest.raises(WrongIsolation):
        session.scalars(locking).unique().one()
    session.rollback()
    bill = session.scalars(locking).unique().one()  # the first statement of its transaction
    assert (bill.total, [item.value for item in bill.items]) == (111, [11, 100])


@pytest.mark.databases("postgresql")
def test_a_statement_that_writes_too_is_executed_once(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> int | None:
        key = sa.select(sa.func.max(Shop.id) + 1).scalar_subquery()
        added = sa.insert(Shop).values(id=key, name="new").returning(Shop.id).cte()
        reading = OF_BILL.join(Bill.items).options(contains_eager(Bill.items)).add_cte(added)
        session.scalars(reading).unique().all()
        return session.scalar(sa.select(sa.func.count()).select_from(Shop))

    assert bob.does(read) == 3


def test_parts_of_parts_that_the_program_has_left_out_stay_so(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> list[int]:
        session.get_one_entity(Bill, 1, LockOptions.ForUpdate)
        session.add(Tax(id=2, item_id=1, value=100))
        session.commit()
        below = JOINED.joinedload(Item.taxes.and_(Tax.value > 50))
        bill: Bill = session.scalars(OF_BILL.options(below)).unique().one()
        return [tax.id for tax in bill.items[0].taxes]

    assert bob.does(read) == [2]


BESIDE: dict[str, sa.Select[Any]] = {
    "joinedload": OF_BILL.options(
        JOINED_TAXES,
        JOINED.joinedload(Item.shop),
        JOINED.undefer(Item.remark),
        raiseload("*"),
    ),
    "contains_eager": OF_BILL.join(Bill.items)
    .outerjoin(Item.taxes)
    .options(
        contains_eager(Bill.items).contains_eager(Item.taxes),
        contains_eager(Bill.items).joinedload(Item.shop),
        contains_eager(Bill.items).undefer(Item.remark),
    ),
    "selectinload beside a join": OF_BILL.join(Bill.items).options(
        selectinload(Bill.items).joinedload(Item.shop),
        selectinload(Bill.items).joinedload(Item.taxes),
        selectinload(Bill.items).undefer(Item.remark),
    ),
}


@pytest.mark.parametrize("statement", BESIDE.values(), ids=BESIDE)
def test_what_is_loaded_with_the_parts_stays_loaded(
    bob: Actor[LockingSession], statement: sa.Select[Any]
) -> None:
    def read(session: LockingSession) -> None:
        bill = session.scalars(statement).unique().one()
        item = sa.inspect(bill).dict["items"][0]
        loaded = sa.inspect(item).dict
        assert {"value", "remark", "taxes", "shop"} <= loaded.keys()
        assert sa.inspect(loaded["shop"]).dict["name"] == "one"
        assert sa.inspect(loaded["taxes"][0]).dict["value"] == 1

    bob.does(read)


def test_what_the_foreign_key_of_a_part_names_is_not_older_than_the_lock(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def change(session: LockingSession) -> None:
        bill = session.get_one_document(LateBill, 1, LockOptions.ForUpdate)
        bill.items[0].shop_id = 2
        bill.items[0].taxes[0].value = 7
        session.flush()

    def read(session: LockingSession) -> tuple[str, int]:
        below = JOINED_TAXES, JOINED.joinedload(Item.shop)
        item = session.scalars(OF_BILL.options(*below)).unique().one().items[0]
        return item.shop.name, item.taxes[0].value

    alice.does(change)
    queued = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert queued.result() == ("two", 7)


def _delete_first(session: LockingSession, bill: Bill) -> None:
    session.delete(bill.items[0].taxes[0])
    session.delete(bill.items[0])


def _move_first(session: LockingSession, bill: Bill) -> None:
    bill.items[0].bill = session.get_one_document(LateBill, 2, LockOptions.ForUpdate)


@pytest.mark.parametrize("change", [_delete_first, _move_first])
def test_members_that_have_gone_meanwhile_are_left_out_too(
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    change: Callable[[LockingSession, Bill], None],
) -> None:
    def prepare(session: LockingSession) -> None:
        session.add(LateBill(id=2, total=1, fee=1))
        bill = session.get_one_document(LateBill, 1, LockOptions.ForUpdate)
        bill.items.append(Item(id=2, value=20))
        session.commit()
        change(session, session.get_one_document(LateBill, 1, LockOptions.ForUpdate))
        session.flush()

    def read(session: LockingSession) -> list[int]:
        statement = OF_BILL.join(Bill.items).options(contains_eager(Bill.items))
        return [item.id for item in session.scalars(statement).unique().one().items]

    alice.does(prepare)
    queued = bob.starts(read)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(lambda session: session.commit())
    assert queued.result() == [2]


def test_all_is_loaded_when_it_returns(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> None:
        (bill,) = READS["joinedload"](session)
        assert {"total", "items", "sum_of_items"} <= sa.inspect(bill).dict.keys()
        assert "value" in sa.inspect(bill.items[0]).dict

    bob.does(read)


def test_a_statement_that_locks_all_that_it_reads_is_sent_alone(bob: Actor[LockingSession]) -> None:
    def read(session: LockingSession) -> None:
        sent: list[str] = []

        def note(*args: Any) -> None:
            sent.append(args[2])

        connection = session.connection()
        sa.event.listen(connection, "before_cursor_execute", note)
        session.scalars(sa.select(Item).where(Item.id == 1).with_for_update()).one()
        session.scalars(sa.select(Bill.id, Bill.total).where(Bill.id == 1).with_for_update()).one()
        both = sa.select(Bill, Item).join(Bill.items).options(defer(SUM_OF_ITEMS))
        session.execute(both.with_for_update()).all()
        assert [one for one in sent if one.startswith("SELECT")] == sent
        assert len(sent) == 3

    bob.does(read)
