"""A row that becomes a part, or a header, by a change of the column that tells its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, LockOptions, document
from tests.integration.guard.models import Patient, Repair, Ticket, Visit, Work
from tests.integration.guard.steps import Action, hold, refused
from tests.support.databases import Database

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


BECOMES_REPAIR: dict[str, Action] = {
    "update": lambda s: s.execute(sa.update(Work).where(Work.id == 3).values(kind="repair")),
    "table": lambda s: s.execute(WORK.update().where(WORK.c.id == 3).values(kind="repair")),
    "by an expression": lambda s: s.execute(
        sa.update(Work).where(Work.id == 3).values(kind=sa.func.lower("REPAIR"))
    ),
    "by key": by_key(kind="repair"),
    "bulk": lambda s: s.bulk_update_mappings(sa.inspect(Work), [{"id": 3, "kind": "repair"}]),
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
