"""Statements that write one of the several tables of a part: a class of a join(), and joined inheritance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column, relationship

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.support.databases import Database
from tests.support.rows import rows

pytestmark = pytest.mark.quick


class Base(DeclarativeBase):
    """The tables of this file."""


def key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


PLACES: Any = sa.Table(
    "st_place",
    Base.metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ship_id", sa.ForeignKey("st_ship.id")),
    sa.Column("deck", sa.Integer, nullable=False, default=0),
)
SIZES: Any = sa.Table(
    "st_size",
    Base.metadata,
    sa.Column("id", sa.ForeignKey(PLACES.c.id), primary_key=True, autoincrement=False),
    sa.Column("beds", sa.Integer, nullable=False, default=0),
)


@document(parts=("cabins", "boats", "rafts"))
class Ship(Base):
    """A header."""

    __tablename__ = "st_ship"
    id: Mapped[int] = key()
    cabins: Mapped[list[Cabin]] = relationship()
    boats: Mapped[list[Boat]] = relationship()
    rafts: Mapped[list[RiverRaft]] = relationship()


class Cabin(Base):
    """A part that is mapped on two tables at once."""

    __table__ = PLACES.join(SIZES)
    id = column_property(PLACES.c.id, SIZES.c.id)


class Thing(Base):
    """The base class of a part, which has no ship itself."""

    __tablename__ = "st_thing"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "thing"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(sa.String(10))


class Boat(Thing):
    """A part of joined inheritance."""

    __tablename__ = "st_boat"
    __mapper_args__ = {"polymorphic_identity": "boat"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey(Thing.id), primary_key=True)
    oars: Mapped[int] = mapped_column(default=0)
    ship_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Ship.id))


class Raft(Thing):
    """No part, but its subclass in the same table is one."""

    __tablename__ = "st_raft"
    __mapper_args__ = {"polymorphic_identity": "raft"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey(Thing.id), primary_key=True)
    logs: Mapped[int] = mapped_column(default=0)


class RiverRaft(Raft):
    """A part without a table of its own, below a class of two tables."""

    __mapper_args__ = {"polymorphic_identity": "river"}  # noqa: RUF012
    ship_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Ship.id))


THINGS: Any = Thing.__table__
BOATS: Any = Boat.__table__


@pytest.fixture
def session(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    with LockingSession(database.engine()) as session:
        with session.unguarded():
            session.add_all([Ship(id=1), Ship(id=2)])
            session.flush()
            for n in (1, 2):
                session.add_all([Cabin(id=n, ship_id=n), Boat(id=n, ship_id=n)])
            session.add_all([Raft(id=4), RiverRaft(id=5, ship_id=1)])
            session.commit()
        yield session


def by_key(session: LockingSession) -> None:
    session.execute(sa.update(Cabin), [{"id": 1, "deck": 3}])


def by_mappings(session: LockingSession) -> None:
    session.bulk_update_mappings(sa.inspect(Cabin), [{"id": 1, "deck": 3, "beds": 3}])


def new_by_mappings(session: LockingSession) -> None:
    session.bulk_insert_mappings(sa.inspect(Cabin), [{"id": 3, "ship_id": 1, "deck": 3, "beds": 3}])


def first_table(session: LockingSession) -> None:
    session.execute(sa.update(PLACES).where(PLACES.c.id == 1).values(deck=3))


def second_table(session: LockingSession) -> None:
    session.execute(sa.update(SIZES).where(SIZES.c.id == 1).values(beds=3))


def into_both_tables(session: LockingSession) -> None:
    session.execute(sa.insert(THINGS), [{"id": 3, "kind": "boat"}])
    row = sa.select(THINGS.c.id, sa.literal(1)).where(THINGS.c.id == 3)
    session.execute(sa.insert(BOATS).from_select(["id", "ship_id"], row))


@rows("write", [by_key, by_mappings, new_by_mappings, first_table, second_table, into_both_tables])
def test_a_row_of_two_tables_needs_the_lock_of_its_document(
    session: LockingSession, write: Callable[[LockingSession], None]
) -> None:
    for permitted, held in ((False, []), (False, [2]), (True, [1])):
        locked = [session.get_one_entity(Ship, n, LockOptions.ForUpdate) for n in held]
        if permitted:
            write(session)
        else:
            with pytest.raises(UnlockedWrite):
                write(session)
        assert len(locked) == len(held)
        session.rollback()


@pytest.mark.filterwarnings("ignore:.*cartesian product")  # so does SQLAlchemy say of it itself
def test_rows_of_no_part_in_its_table_need_no_lock(session: LockingSession) -> None:
    """SQLAlchemy adds no condition of the class, whose kind is in the other table."""
    logs = sa.update(RiverRaft).values(logs=3).execution_options(synchronize_session=False)
    session.execute(logs.where(RiverRaft.id == 4))
    assert session.scalars(sa.select(Raft.logs).where(Raft.id == 4)).all() == [3]
    with pytest.raises(UnlockedWrite):
        session.execute(logs.where(RiverRaft.id == 5))


def test_no_question_is_asked_that_the_table_answers(session: LockingSession) -> None:
    """A new row of the last table of a class was no row of the class, and one of it is one of the table."""
    sent: list[str] = []
    session.get_one_entity(Ship, 1, LockOptions.ForUpdate)

    @sa.event.listens_for(session.get_bind(), "before_cursor_execute")
    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement.lstrip()[:6].upper())

    session.execute(sa.insert(THINGS).values(id=3, kind="boat"))
    session.execute(sa.insert(BOATS).values(id=3, ship_id=1))
    session.execute(sa.update(Boat).where(Boat.id == 1).values(oars=3))
    session.execute(sa.delete(BOATS).where(BOATS.c.id == 1))
    assert sent == ["INSERT", "INSERT", "SELECT", "UPDATE", "SELECT", "DELETE"]
