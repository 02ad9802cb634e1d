"""An association table between the parts of two documents: each of its rows is of both."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, document
from tests.integration.guard.steps import hold, refused
from tests.support.databases import Database

pytestmark = pytest.mark.quick


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
