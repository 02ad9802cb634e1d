"""Kinds of mappings under an adopted lock: values changed in place, parts that raise, second classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    selectinload,
)

from lab.running.kept import KeptTables
from sa_doclock import LockingSession, LockOptions, UnsavedChanges, document
from tests.support.databases import Database

pytestmark = pytest.mark.not_databases("sqlite-journal")
ForUpdate = LockOptions.ForUpdate


class Base(DeclarativeBase):
    pass


@document(parts=("notes",))
class Doc(Base):
    __tablename__ = "fk_doc"
    a: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    b: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    status: Mapped[str] = mapped_column(sa.String(20))
    data: Mapped[Any] = mapped_column(MutableDict.as_mutable(sa.JSON()))
    notes: Mapped[list[Note]] = relationship(lazy="raise", order_by="Note.id")


class Note(Base):
    __tablename__ = "fk_note"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    a: Mapped[int]
    b: Mapped[int]
    text: Mapped[str] = mapped_column(sa.String(20))
    tags: Mapped[Any] = mapped_column(MutableDict.as_mutable(sa.JSON()), default=dict)
    __table_args__ = (sa.ForeignKeyConstraint(["a", "b"], ["fk_doc.a", "fk_doc.b"]),)


class Other(DeclarativeBase):
    """The base of a class that knows nothing of documents."""


class Second(Other):
    """The same table, its key in another order."""

    __table__ = Doc.__table__
    __mapper_args__ = {"primary_key": [Doc.__table__.c.b, Doc.__table__.c.a]}  # noqa: RUF012


class SecondNote(Other):
    __table__ = Note.__table__


STATEMENT = sa.select(Doc).where(Doc.a == 1).with_for_update()
DOCS: Any = Doc.__table__
KEYS = sa.select(DOCS.c.b, DOCS.c.a.label("first")).where(DOCS.c.a == 1).with_for_update()
Change = Callable[..., None]


def fill(connection: sa.Connection) -> None:
    with Session(connection) as session:
        for a, b in ((1, 2), (2, 1)):
            session.add(Doc(a=a, b=b, total=0, status="new", data={"x": 1}))
        session.flush()
        session.add(Note(id=1, a=1, b=2, text="old"))
        session.flush()


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    """Keep the tables until the last test of this file has ended."""
    tables = KeptTables(Base.metadata, fill)
    yield tables
    tables.close()


@pytest.fixture
def engine(database: Database, kept: KeptTables) -> sa.Engine:
    kept.put_rows(database)
    innodb = database.name in ("mysql", "mariadb")
    return database.engine(**({"isolation_level": "READ COMMITTED"} if innodb else {}))


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[LockingSession]:
    with LockingSession(engine, expire_on_commit=False) as session:
        yield session


@pytest.fixture
def change(engine: sa.Engine) -> Change:
    """Return a function that changes document (1, 2), as another session does."""

    def change(**values: Any) -> None:
        with LockingSession(engine) as other:
            found = other.get_document(Doc, (1, 2), ForUpdate)
            assert found is not None
            for name, value in values.items():
                setattr(found, name, value)
            found.notes[0].text = "changed"
            other.commit()

    return change


def test_a_partial_refresh_leaves_no_old_value(session: LockingSession, change: Change) -> None:
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(total=77)
    session.refresh(doc, ["status"], with_for_update=True)
    assert doc.total == 77


def test_the_second_try_is_refused_like_the_first(session: LockingSession, change: Change) -> None:
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(total=50)
    doc.total = 7
    for _ in range(2):
        with session.no_autoflush, pytest.raises(UnsavedChanges, match="'total'"):
            session.scalars(STATEMENT).all()
    assert doc.total == 7
    assert not session.held_locks


def test_a_value_that_was_changed_in_place_is_refused(
    session: LockingSession, change: Change
) -> None:
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(data={"x": 2})
    doc.data["mine"] = 1
    with session.no_autoflush, pytest.raises(UnsavedChanges, match="'data'"):
        session.scalars(STATEMENT).all()


@pytest.mark.parametrize("pending", [False, True], ids=["nothing pending", "something pending"])
def test_parts_that_raise_are_read_again(
    session: LockingSession, change: Change, *, pending: bool
) -> None:
    doc = session.get_one(Doc, (1, 2), options=[selectinload(Doc.notes)])
    notes = list(doc.notes)
    session.commit()
    change(total=5)
    if pending:
        doc.status = "mine"
    with session.no_autoflush:
        session.scalars(STATEMENT).all()
    assert doc.total == 5
    assert [note.text for note in doc.notes] == ["changed"]
    assert notes == doc.notes


TAKES: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda session: session.get_entity(Doc, (1, 2), ForUpdate),
    "adopted": lambda session: session.scalars(STATEMENT).all(),
    "table": lambda session: session.execute(KEYS).all(),
}


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_second_class_is_read_again(
    session: LockingSession, change: Change, take: Callable[[LockingSession], Any]
) -> None:
    second: Any = session.get_one(Second, (2, 1))
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(total=9)
    take(session)
    assert dict(session.held_locks) == {(Doc, (1, 2)): ForUpdate}  # the class that is declared
    assert doc.total == 9
    assert second.total == 9


def test_the_key_of_a_second_class_is_that_of_the_row(session: LockingSession) -> None:
    session.get_one_entity(Doc, (1, 2), ForUpdate)
    second: Any = session.get_one(Second, (2, 1))
    second.total = 3
    session.commit()
    assert session.get_one(Doc, (1, 2)).total == 3


@pytest.mark.parametrize("ours", [False, True], ids=["adopted", "get_entity"])
def test_a_part_that_a_second_class_has_loaded_again_is_read_again(
    session: LockingSession, change: Change, *, ours: bool
) -> None:
    def lock() -> None:
        session.get_entity(Doc, (1, 2), ForUpdate) if ours else session.scalars(STATEMENT).all()

    note: Any = session.get_one(SecondNote, 1)
    lock()
    session.rollback()  # it expires all
    assert session.get_one(Doc, (1, 2)).total == 0
    assert note.text == "old"
    session.commit()
    change()
    lock()
    assert note.text == "changed"


def test_a_part_that_was_changed_in_place_is_refused(
    session: LockingSession, change: Change
) -> None:
    note = session.get_one(Note, 1)
    assert note.tags == {}
    session.commit()
    change()
    note.tags["mine"] = 1
    with session.no_autoflush, pytest.raises(UnsavedChanges, match="'tags' of Note 1"):
        session.scalars(STATEMENT).one()
    assert note.tags == {"mine": 1}
