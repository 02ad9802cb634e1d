"""A row becomes a part or a header through a change of its discriminator column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column, relationship

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.models import Patient, Repair, Ticket, Visit, Work
from tests.integration.guard.steps import Action, hold, refused
from tests.support.databases import Database
from tests.support.rows import rows

pytestmark = pytest.mark.quick


WORK: Any = Work.__table__


class Base(DeclarativeBase):
    """The tables of a relationship that compares a column with a constant."""


@document(parts=("comments",))
class Doc(Base):
    __tablename__ = "kd_doc"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    comments: Mapped[list[Comment]] = relationship(
        primaryjoin=lambda: sa.and_(
            Doc.id == sa.orm.foreign(Comment.owner_id), Comment.kind == "doc"
        )
    )


class Comment(Base):
    __tablename__ = "kd_comment"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner_id: Mapped[int]
    kind: Mapped[str] = mapped_column(sa.String(10))
    text: Mapped[str] = mapped_column(sa.String(10), default="")


@pytest.fixture
def comments(database: Database) -> Iterator[LockingSession]:
    """Open a session on two documents, with a comment of document 1 and one of customer 2."""
    database.create(Base.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(sa.insert(Doc), [{"id": 1}, {"id": 2}])
        rows = [(1, 1, "doc"), (2, 2, "customer")]
        names = ("id", "owner_id", "kind")
        connection.execute(sa.insert(Comment), [dict(zip(names, row, strict=True)) for row in rows])
    with LockingSession(engine) as session:
        yield session


def by_key(**values: Any) -> Action:
    return lambda session: session.execute(sa.update(Work), [{"id": 3, **values}])


def by_flush(session: LockingSession) -> None:
    session.get_one(Work, 3).kind = "repair"
    session.flush()


def by_bulk_save(session: LockingSession) -> None:
    with session.no_autoflush:
        work = session.get_one(Work, 3)
        work.kind = "repair"
        session.bulk_save_objects([work])
    session.expunge_all()


BECOMES_REPAIR: dict[str, Action] = {
    "update": lambda s: s.execute(sa.update(Work).where(Work.id == 3).values(kind="repair")),
    "table": lambda s: s.execute(WORK.update().where(WORK.c.id == 3).values(kind="repair")),
    "by an expression": lambda s: s.execute(
        sa.update(Work).where(Work.id == 3).values(kind=sa.func.lower("REPAIR"))
    ),
    "by key": by_key(kind="repair"),
    "bulk": lambda s: s.bulk_update_mappings(sa.inspect(Work), [{"id": 3, "kind": "repair"}]),
    "saved in bulk": by_bulk_save,
    "flush": by_flush,
}


@pytest.mark.parametrize("action", BECOMES_REPAIR.values(), ids=BECOMES_REPAIR)
def test_it_becomes_a_part(session: LockingSession, action: Action) -> None:
    with session.unguarded():
        session.execute(WORK.update().where(WORK.c.id == 3).values(fault_id=1))
    session.commit()
    with refused(session, Ticket, 1, sent_first=action is by_flush):
        action(session)
    session.rollback()
    held = hold(session, Ticket, 1)
    action(session)
    session.commit()
    assert held
    assert session.get_one(Repair, 3).fault_id == 1


@pytest.mark.filterwarnings("ignore:Flushing object")
@pytest.mark.parametrize("how", ["flush", "update"])
def test_it_leaves_one_document_for_another(session: LockingSession, how: str) -> None:
    with session.unguarded():
        session.execute(WORK.update().where(WORK.c.id == 1).values(patient_id=1))
    session.commit()

    def action() -> None:
        if how == "flush":
            session.get_one(Repair, 1).kind = "visit"
            session.flush()
        else:
            session.execute(sa.update(Work).where(Work.id == 1).values(kind="visit"))

    held: list[Any] = list(hold(session, Ticket, 1))
    with refused(session, Patient, 1, sent_first=True):
        action()
    session.rollback()
    held = list(hold(session, Patient, 1))
    with refused(session, Ticket, 1):
        action()
    session.rollback()
    held = [*hold(session, Ticket, 1), *hold(session, Patient, 1)]
    action()
    session.commit()
    session.expunge_all()
    assert session.get_one(Visit, 1).patient_id == 1
    assert held


def test_it_leaves_as_an_object_of_another_class(session: LockingSession) -> None:
    with session.unguarded():
        session.execute(WORK.update().where(WORK.c.id == 3).values(fault_id=1))
    session.commit()
    held = hold(session, Ticket, 1)
    work = session.get_one(Work, 3)
    work.kind = "repair"
    session.commit()
    held.clear()
    work.kind = "work"
    with refused(session, Ticket, 1):
        session.flush()


def test_it_becomes_a_header(session: LockingSession) -> None:
    becomes = sa.update(Ticket).where(Ticket.id == 3).values(kind="fault")
    with refused(session, Ticket, 3):
        session.execute(becomes)
    held = session.get_one_entity(Ticket, 3, LockOptions.ForUpdate)
    session.execute(becomes)
    session.commit()
    assert held


UPDATES: dict[str, Any] = {
    "text": (sa.update(Comment).values(text="x"), (1,)),
    "kind": (sa.update(Comment).values(kind="doc"), (1, 2)),
    "owner": (sa.update(Comment).where(Comment.id == 2).values(owner_id=1), ()),
    "both": (sa.update(Comment).where(Comment.id == 2).values(owner_id=1, kind="doc"), (1,)),
    "leaves": (sa.update(Comment).where(Comment.id == 1).values(kind="customer"), (1,)),
    "delete": (sa.delete(Comment), (1,)),
    "delete another's": (sa.delete(Comment).where(Comment.id == 2), ()),
    "insert": (sa.insert(Comment).values(id=3, owner_id=2, kind="doc"), (2,)),
    "insert another's": (sa.insert(Comment).values(id=3, owner_id=2, kind="customer"), ()),
}


@pytest.mark.parametrize(("statement", "touched"), UPDATES.values(), ids=UPDATES)
def test_a_constant_of_the_relationship_counts(
    comments: LockingSession, statement: Any, touched: tuple[int, ...]
) -> None:
    for missing in touched:
        held = hold(comments, Doc, *(one for one in touched if one != missing))
        with refused(comments, Doc, missing):
            comments.execute(statement)
        comments.rollback()
    held = hold(comments, Doc, *touched)
    comments.execute(statement)
    comments.commit()
    assert len(held) == len(touched)


# --------------------------------------------------------------------------------------------------
# Statements that write one table of a multi-table part: mapped to a join(), or joined inheritance.


class SeveralTablesBase(DeclarativeBase):
    """The tables of this file."""


def key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


PLACES: Any = sa.Table(
    "st_place",
    SeveralTablesBase.metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ship_id", sa.ForeignKey("st_ship.id")),
    sa.Column("deck", sa.Integer, nullable=False, default=0),
)
SIZES: Any = sa.Table(
    "st_size",
    SeveralTablesBase.metadata,
    sa.Column("id", sa.ForeignKey(PLACES.c.id), primary_key=True, autoincrement=False),
    sa.Column("beds", sa.Integer, nullable=False, default=0),
)


@document(parts=("cabins", "boats", "rafts"))
class Ship(SeveralTablesBase):
    __tablename__ = "st_ship"
    id: Mapped[int] = key()
    cabins: Mapped[list[Cabin]] = relationship()
    boats: Mapped[list[Boat]] = relationship()
    rafts: Mapped[list[RiverRaft]] = relationship()


class Cabin(SeveralTablesBase):
    """A part mapped on two tables at once."""

    __table__ = PLACES.join(SIZES)
    id = column_property(PLACES.c.id, SIZES.c.id)


class Thing(SeveralTablesBase):
    """The base class of a part; it has no ship itself."""

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
    """Not a part, but its subclass in the same table is."""

    __tablename__ = "st_raft"
    __mapper_args__ = {"polymorphic_identity": "raft"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(sa.ForeignKey(Thing.id), primary_key=True)
    logs: Mapped[int] = mapped_column(default=0)


class RiverRaft(Raft):
    """A part without its own table, below a class of two tables."""

    __mapper_args__ = {"polymorphic_identity": "river"}  # noqa: RUF012
    ship_id: Mapped[int | None] = mapped_column(sa.ForeignKey(Ship.id))


THINGS: Any = Thing.__table__
BOATS: Any = Boat.__table__


@pytest.fixture
def session_several_tables(database: Database) -> Iterator[LockingSession]:
    database.create(SeveralTablesBase.metadata)
    with LockingSession(database.engine()) as session:
        with session.unguarded():
            session.add_all([Ship(id=1), Ship(id=2)])
            session.flush()
            for n in (1, 2):
                session.add_all([Cabin(id=n, ship_id=n), Boat(id=n, ship_id=n)])
            session.add_all([Raft(id=4), RiverRaft(id=5, ship_id=1)])
            session.commit()
        yield session


def by_key_several_tables(session: LockingSession) -> None:
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


@rows(
    "write",
    [
        by_key_several_tables,
        by_mappings,
        new_by_mappings,
        first_table,
        second_table,
        into_both_tables,
    ],
)
def test_a_row_of_two_tables_needs_the_lock_of_its_document(
    session_several_tables: LockingSession, write: Callable[[LockingSession], None]
) -> None:
    for permitted, held in ((False, []), (False, [2]), (True, [1])):
        locked = [
            session_several_tables.get_one_entity(Ship, n, LockOptions.ForUpdate) for n in held
        ]
        if permitted:
            write(session_several_tables)
        else:
            with pytest.raises(UnlockedWrite):
                write(session_several_tables)
        assert len(locked) == len(held)
        session_several_tables.rollback()


@pytest.mark.filterwarnings("ignore:.*cartesian product")  # SQLAlchemy warns so
def test_rows_of_no_part_in_its_table_need_no_lock(session_several_tables: LockingSession) -> None:
    """SQLAlchemy adds no condition on the class, whose discriminator is in the other table."""
    logs = sa.update(RiverRaft).values(logs=3).execution_options(synchronize_session=False)
    session_several_tables.execute(logs.where(RiverRaft.id == 4))
    assert session_several_tables.scalars(sa.select(Raft.logs).where(Raft.id == 4)).all() == [3]
    with pytest.raises(UnlockedWrite):
        session_several_tables.execute(logs.where(RiverRaft.id == 5))


def test_no_question_is_asked_that_the_table_answers(
    session_several_tables: LockingSession,
) -> None:
    """A new row in a class's last table was not in the class; each class row is in it."""
    sent: list[str] = []
    session_several_tables.get_one_entity(Ship, 1, LockOptions.ForUpdate)

    @sa.event.listens_for(session_several_tables.get_bind(), "before_cursor_execute")
    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement.lstrip()[:6].upper())

    session_several_tables.execute(sa.insert(THINGS).values(id=3, kind="boat"))
    session_several_tables.execute(sa.insert(BOATS).values(id=3, ship_id=1))
    session_several_tables.execute(sa.update(Boat).where(Boat.id == 1).values(oars=3))
    session_several_tables.execute(sa.delete(BOATS).where(BOATS.c.id == 1))
    assert sent == ["INSERT", "INSERT", "SELECT", "UPDATE", "SELECT", "DELETE"]
