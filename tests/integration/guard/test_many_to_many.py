"""Parts that several documents have: the row is of all of them, the link of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, document
from tests.integration.guard.models import Order, Tag
from tests.integration.guard.steps import hold, refused, writes_sent
from tests.support.databases import Database

pytestmark = pytest.mark.quick


Action = Callable[[LockingSession], object]


def append_tag(session: LockingSession) -> object:
    order, tag = session.get_one(Order, 1), session.get_one(Tag, 2)
    order.tags.append(tag)
    return order


def append_order(session: LockingSession) -> object:
    order, tag = session.get_one(Order, 1), session.get_one(Tag, 2)
    tag.orders.append(order)
    return tag, order


def remove_tag(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    order.tags.clear()
    return order


def remove_order(session: LockingSession) -> object:
    order, tag = session.get_one(Order, 1), session.get_one(Tag, 1)
    tag.orders.remove(order)
    return tag, order


def append_new_tag(session: LockingSession) -> object:
    order = session.get_one(Order, 1)
    order.tags.append(Tag(id=9, name="new"))
    return order


def new_tag_with_order(session: LockingSession) -> object:
    session.add(tag := Tag(id=9, name="new", orders=[session.get_one(Order, 1)]))
    return tag


LINKS: dict[str, Action] = {
    one.__name__: one
    for one in (
        append_tag,
        append_order,
        remove_tag,
        remove_order,
        append_new_tag,
        new_tag_with_order,
    )
}
each_link = pytest.mark.parametrize("action", LINKS.values(), ids=LINKS)


@each_link
def test_a_link_needs_the_lock_of_its_document(session: LockingSession, action: Action) -> None:
    kept = action(session)
    with refused(session, Order, 1):
        session.flush()
    assert kept


@each_link
def test_the_other_document_is_no_help(session: LockingSession, action: Action) -> None:
    held = hold(session, Order, 2)
    kept = action(session)
    with refused(session, Order, 1):
        session.flush()
    assert all((held, kept))


@each_link
def test_a_link_needs_the_lock_of_no_other(session: LockingSession, action: Action) -> None:
    held = hold(session, Order, 1)
    kept = action(session)
    with writes_sent(session) as sent:
        session.commit()
    assert sent
    assert all((held, kept))


def change_tag(session: LockingSession) -> object:
    (tag := session.get_one(Tag, 1)).name = "changed"
    return tag


def delete_tag(session: LockingSession) -> object:
    session.delete(tag := session.get_one(Tag, 1))
    return tag


@pytest.mark.parametrize("action", [change_tag, delete_tag])
def test_the_row_needs_the_locks_of_all_documents(session: LockingSession, action: Action) -> None:
    for held, missing in ((1, 2), (2, 1)):
        order = hold(session, Order, held)
        kept = action(session)
        with refused(session, Order, missing, "Tag 1"):
            session.flush()
        assert all((order, kept))
        session.rollback()
    orders = hold(session, Order, 1, 2)
    kept = action(session)
    session.commit()
    assert all((orders, kept))


def test_a_row_that_was_linked_in_this_transaction_is_the_documents(
    session: LockingSession,
) -> None:
    (order,) = hold(session, Order, 2)
    (tag := session.get_one(Tag, 3)).name = "still nobody's"
    session.flush()
    order.tags.append(tag)
    session.flush()
    tag.name = "of the second"
    session.commit()
    tag.name = "not held any more"
    with refused(session, Order, 2, "Tag 3", "'name'"):
        session.flush()


def test_to_delete_a_document_is_no_change_of_its_tags_other_documents(
    session: LockingSession,
) -> None:
    (order,) = hold(session, Order, 1)
    for comment in order.comments:
        session.delete(comment)
    session.delete(order)
    session.commit()
    assert [one.id for one in session.get_one(Tag, 1).orders] == [2]


# --------------------------------------------------------------------------------------------------
# An association table between the parts of two documents: each of its rows is of both.


class Base(DeclarativeBase):
    """The tables of this file."""


NAMES = ("plan", "room", "speaker", "seat")
booking = sa.Table(
    "ad_booking",
    Base.metadata,
    *(sa.Column(f"{name}_id", sa.ForeignKey(f"ad_{name}.id"), primary_key=True) for name in NAMES),
)


class Speaker(Base):
    __tablename__ = "ad_speaker"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Seat(Base):
    __tablename__ = "ad_seat"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@document(parts=("speakers",))
class Plan(Base):
    __tablename__ = "ad_plan"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    speakers: Mapped[list[Speaker]] = relationship(
        secondary=booking,
        primaryjoin=lambda: Plan.id == booking.c.plan_id,
        secondaryjoin=lambda: Speaker.id == booking.c.speaker_id,
    )


@document(parts=("seats",))
class Room(Base):
    __tablename__ = "ad_room"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seats: Mapped[list[Seat]] = relationship(
        secondary=booking,
        primaryjoin=lambda: Room.id == booking.c.room_id,
        secondaryjoin=lambda: Seat.id == booking.c.seat_id,
        overlaps="speakers",
    )


@pytest.mark.parametrize(("held", "other"), [(Plan, Room), (Room, Plan)])
def test_its_rows_are_written_under_the_locks_of_both(
    database: Database, held: Any, other: Any
) -> None:
    database.create(Base.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(table.insert().values({one.name: 1 for one in table.c}))
    with LockingSession(engine) as session:
        kept = hold(session, held, 1)
        with refused(session, other, 1, "deleted"):
            session.execute(sa.delete(booking))
        kept += hold(session, other, 1)
        session.execute(sa.delete(booking))
        session.commit()
