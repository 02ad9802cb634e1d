"""Kinds of mappings under an adopted lock: mutable values, lazy="raise" parts, second classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    registry,
    relationship,
    selectinload,
    subqueryload,
)

from lab.running.kept import KeptTables
from sa_doclock import LockingSession, LockOptions, UnsavedChanges, document
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order

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
    old: Mapped[list[Note]] = relationship(
        viewonly=True,
        primaryjoin="and_(Doc.a == Note.a, Doc.b == Note.b, Note.text == 'old')",
    )
    new: Mapped[list[Note]] = relationship(
        viewonly=True,
        primaryjoin="and_(Doc.a == Note.a, Doc.b == Note.b, Note.text == 'new')",
    )


class Note(Base):
    __tablename__ = "fk_note"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    a: Mapped[int]
    b: Mapped[int]
    text: Mapped[str] = mapped_column(sa.String(20))
    tags: Mapped[Any] = mapped_column(MutableDict.as_mutable(sa.JSON()), default=dict)
    __table_args__ = (sa.ForeignKeyConstraint(["a", "b"], ["fk_doc.a", "fk_doc.b"]),)


class Other(DeclarativeBase):
    """The base of a class without documents."""


class Second(Other):
    """The same table, its key in another order."""

    __table__ = Doc.__table__
    __mapper_args__ = {"primary_key": [Doc.__table__.c.b, Doc.__table__.c.a]}  # noqa: RUF012


class SecondNote(Other):
    __table__ = Note.__table__


STATEMENT = sa.select(Doc).where(Doc.a == 1).with_for_update()
DOCS: Any = Doc.__table__
KEYS = sa.select(DOCS.c.b, DOCS.c.a.label("first")).where(DOCS.c.a == 1).with_for_update()
NO_KEYS = sa.select(DOCS.c.total).where(DOCS.c.a == 1).with_for_update()
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
    """Keep the tables until the last test of this file ends."""
    tables = KeptTables(Base.metadata, fill)
    yield tables
    tables.close()


@pytest.fixture
def engine_fresh_kinds(database: Database, kept: KeptTables) -> sa.Engine:
    kept.put_rows(database)
    innodb = database.name in ("mysql", "mariadb")
    return database.engine(**({"isolation_level": "READ COMMITTED"} if innodb else {}))


@pytest.fixture
def session(engine_fresh_kinds: sa.Engine) -> Iterator[LockingSession]:
    with LockingSession(engine_fresh_kinds, expire_on_commit=False) as session:
        yield session


@pytest.fixture
def change(engine_fresh_kinds: sa.Engine) -> Change:
    """Return a function that changes document (1, 2) from another session."""

    def change(**values: Any) -> None:
        with LockingSession(engine_fresh_kinds) as other:
            found = other.get_document(Doc, (1, 2), ForUpdate)
            assert found is not None
            for name, value in values.items():
                setattr(found, name, value)
            found.notes[0].text = "changed"
            other.commit()

    return change


@pytest.mark.not_databases("sqlite-journal")
def test_a_partial_refresh_leaves_no_old_value(session: LockingSession, change: Change) -> None:
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(total=77)
    session.refresh(doc, ["status"], with_for_update=True)
    assert doc.total == 77


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("pending", [False, True], ids=["nothing pending", "something pending"])
@pytest.mark.parametrize("statement", [STATEMENT, NO_KEYS], ids=["object", "no key"])
def test_a_relationship_that_is_no_part_is_read_again(
    session: LockingSession, change: Change, statement: Any, *, pending: bool
) -> None:
    doc, other = session.get_one(Doc, (1, 2)), session.get_one(Doc, (2, 1))
    before, kept = doc.old, other.old
    assert (len(before), len(kept)) == (1, 0)
    session.commit()
    change()
    if pending:
        doc.status = "mine"
    with session.no_autoflush:
        session.execute(statement).all()
        assert doc.old == []
        assert other.old == kept == []


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
def test_a_value_that_was_changed_in_place_is_refused(
    session: LockingSession, change: Change
) -> None:
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(data={"x": 2})
    doc.data["mine"] = 1
    with session.no_autoflush, pytest.raises(UnsavedChanges, match="'data'"):
        session.scalars(STATEMENT).all()


@pytest.mark.not_databases("sqlite-journal")
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


@pytest.mark.not_databases("sqlite-journal")
def test_parts_that_raise_are_read_again_beside_loaders_that_repeat_the_lock(
    session: LockingSession, change: Change
) -> None:
    doc = session.get_one(Doc, (1, 2), options=[selectinload(Doc.notes)])
    session.commit()
    change(total=5)
    loading = subqueryload(Doc.old), subqueryload(Doc.new)
    session.scalars(STATEMENT.options(*loading)).all()
    assert [note.text for note in doc.notes] == ["changed"]


TAKES: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda session: session.get_entity(Doc, (1, 2), ForUpdate),
    "adopted": lambda session: session.scalars(STATEMENT).all(),
    "table": lambda session: session.execute(KEYS).all(),
}


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_second_class_is_read_again(
    session: LockingSession, change: Change, take: Callable[[LockingSession], Any]
) -> None:
    second: Any = session.get_one(Second, (2, 1))
    doc = session.get_one(Doc, (1, 2))
    session.commit()
    change(total=9)
    take(session)
    assert dict(session.held_locks) == {(Doc, (1, 2)): ForUpdate}  # the declared class
    assert doc.total == 9
    assert second.total == 9


@pytest.mark.not_databases("sqlite-journal")
def test_the_key_of_a_second_class_is_that_of_the_row(session: LockingSession) -> None:
    session.get_one_entity(Doc, (1, 2), ForUpdate)
    second: Any = session.get_one(Second, (2, 1))
    second.total = 3
    session.commit()
    assert session.get_one(Doc, (1, 2)).total == 3


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("ours", [False, True], ids=["adopted", "get_entity"])
def test_a_part_that_a_second_class_has_loaded_again_is_read_again(
    session: LockingSession, change: Change, *, ours: bool
) -> None:
    def lock() -> None:
        session.get_entity(Doc, (1, 2), ForUpdate) if ours else session.scalars(STATEMENT).all()

    note: Any = session.get_one(SecondNote, 1)
    lock()
    session.rollback()  # expires all objects
    assert session.get_one(Doc, (1, 2)).total == 0
    assert note.text == "old"
    session.commit()
    change()
    lock()
    assert note.text == "changed"


@pytest.mark.not_databases("sqlite-journal")
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


# --------------------------------------------------------------------------------------------------
# A listener changes the document of a with_for_update() before the lock is granted.


class Undeclared(Base):
    __tablename__ = "lk_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    remark: Mapped[str] = mapped_column(sa.String(20))
    lines: Mapped[list[UndeclaredLine]] = relationship()


class UndeclaredLine(Base):
    __tablename__ = "lk_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("lk_order.id"))
    name: Mapped[str] = mapped_column(sa.String(20))
    value: Mapped[int]


CLASSES: dict[str, Any] = {"declared": Order, "undeclared": Undeclared}
LINES: dict[Any, Any] = {Order: Line, Undeclared: UndeclaredLine}

Act = Callable[[], None]
ListenersChange = Callable[[Any], None]


def _change_header(order: Any) -> None:
    order.total += 1


def _change_line(order: Any) -> None:
    order.lines[0].value += 1


def _add_line(order: Any) -> None:
    order.lines.append(LINES[type(order)](id=77, name="new", value=1))


CHANGES: dict[str, ListenersChange] = {
    "header": _change_header,
    "line": _change_line,
    "new": _add_line,
}


@contextmanager
def _in_do_orm_execute(session: LockingSession, _order: Any, act: Act) -> Iterator[None]:
    def execute(state: Any) -> None:
        if not _is_of_loader(state):
            act()

    event.listen(session, "do_orm_execute", execute)
    yield


def _is_of_loader(state: Any) -> bool:
    return bool(state.is_column_load or state.is_relationship_load)


@contextmanager
def _in_before_lock(session: LockingSession, _order: Any, act: Act) -> Iterator[None]:
    event.listen(session, "before_lock", lambda *_: act())
    yield


@contextmanager
def _in_after_begin(session: LockingSession, _order: Any, act: Act) -> Iterator[None]:
    event.listen(session, "after_begin", lambda *_: act())
    yield


@contextmanager
def _in_expire(session: LockingSession, order: Any, act: Act) -> Iterator[None]:
    """The session expires a header; another header has pending changes."""
    entity = type(order)
    other = session.get_one(entity, 2)
    other.remark = "mine"

    def expire(found: Any, _: object) -> None:
        if found is order:
            act()

    event.listen(entity, "expire", expire)
    try:
        with session.no_autoflush:
            yield
    finally:
        event.remove(entity, "expire", expire)


@contextmanager
def _in_load_of_another(session: LockingSession, _order: Any, act: Act) -> Iterator[None]:
    """A do_orm_execute listener loads another object, whose own listener changes the order."""

    def load(*_: object) -> None:
        act()

    def read(state: Any) -> None:
        if not _is_of_loader(state) and "lk_customer" not in str(state.statement):
            session.info["kept"] = session.get(Customer, 1)

    event.listen(session, "do_orm_execute", read)
    event.listen(Customer, "load", load)
    try:
        yield
    finally:
        event.remove(Customer, "load", load)


WHEN: dict[str, Any] = {
    "do_orm_execute": _in_do_orm_execute,
    "before_lock": _in_before_lock,
    "after_begin": _in_after_begin,
    "expire": _in_expire,
    "load of another": _in_load_of_another,
}

ASKS: dict[str, Callable[[LockingSession, Any], Any]] = {
    "scalars": lambda session, entity: session.scalars(
        sa.select(entity).where(entity.id == 1).with_for_update()
    ).one(),
    "get": lambda session, entity: session.get(entity, 1, with_for_update=True),
    "Query": lambda session, entity: session.query(entity).filter_by(id=1).with_for_update().one(),
    "attributes": lambda session, entity: session.execute(
        sa.select(entity.id).where(entity.id == 1).with_for_update()
    ).all(),
    "table": lambda session, entity: session.execute(
        sa.select(entity.__table__).where(entity.__table__.c.id == 1).with_for_update()
    ).all(),
}


def _once(change: ListenersChange, order: Any) -> Act:
    done: list[bool] = []

    def act() -> None:
        if not done:
            done.append(True)
            change(order)

    return act


@pytest.mark.each_value
@pytest.mark.read_committed
@pytest.mark.parametrize("when", WHEN.values(), ids=WHEN)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("entity", CLASSES.values(), ids=CLASSES)
def test_it_is_refused(
    engine: sa.Engine, entity: Any, ask: Any, change: ListenersChange, when: Any
) -> None:
    with LockingSession(engine, expire_on_commit=False) as session:
        order = session.get_one(entity, 1)
        lines = list(order.lines)
        session.get_one(entity, 2)
        session.commit()
        if when is _in_before_lock and ask is ASKS["table"]:
            return  # rows of tables have no such event
        with when(session, order, _once(change, order)):
            with pytest.raises(UnsavedChanges, match=rf"{entity.__name__} (1|rows) FOR UPDATE"):
                ask(session, entity)
            assert not session.held_locks
        session.rollback()
        del lines
    with engine.connect() as connection:  # not written
        assert connection.scalar(sa.select(Order.total).where(Order.id == 1)) == 30


@pytest.mark.read_committed
@pytest.mark.parametrize("listens", [False, True], ids=["alone", "beside do_orm_execute"])
@pytest.mark.parametrize("entity", CLASSES.values(), ids=CLASSES)
def test_it_is_refused_of_a_refresh_which_expires_first(
    engine: sa.Engine, entity: Any, *, listens: bool
) -> None:
    with LockingSession(engine, expire_on_commit=False) as session:
        order = session.get_one(entity, 1)
        if listens:
            event.listen(session, "do_orm_execute", lambda _: None)
        with _in_expire(session, order, _once(_change_header, order)):
            with pytest.raises(UnsavedChanges, match=f"{entity.__name__} 1 FOR UPDATE"):
                session.refresh(order, with_for_update=True)
            assert not session.held_locks
            session.refresh(order, with_for_update=True)  # discards the change
            assert (order.total, list(session.held_locks)) == (30, [(entity, (1,))])


@pytest.mark.read_committed
def test_the_error_names_the_class_of_the_session(engine: sa.Engine) -> None:
    """Another class on the same table, with the same lines, sorts first by name."""
    mappers = registry()
    lines = relationship(Line, viewonly=True, primaryjoin=Line.order_id == Order.id)
    mappers.map_imperatively(type("A", (), {}), Order.__table__, properties={"lines": lines})
    try:
        with LockingSession(engine, expire_on_commit=False) as session:
            order = session.get_one(Order, 1)
            change = _once(_change_line, order)
            assert order.lines
            session.commit()
            refused = pytest.raises(UnsavedChanges, match="Order 1 FOR UPDATE")
            with _in_after_begin(session, order, change), refused:
                ASKS["table"](session, Order)
    finally:
        mappers.dispose()


@pytest.mark.read_committed
@pytest.mark.parametrize("entity", CLASSES.values(), ids=CLASSES)
def test_what_the_program_had_changed_before_is_flushed(engine: sa.Engine, entity: Any) -> None:
    with LockingSession(engine, guard="warn") as session:
        order = session.get_one(Customer, 1)
        order.name = "mine"
        event.listen(session, "do_orm_execute", lambda _: None)
        ASKS["scalars"](session, entity)
        assert not session.dirty
        assert session.held_locks.keys() == {(entity, (1,))}


@pytest.mark.read_committed
def test_what_a_listener_changes_of_another_document_stays(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        other = session.get_one(Undeclared, 2)
        with _in_do_orm_execute(session, other, _once(_change_header, other)):
            ASKS["scalars"](session, Undeclared)
        assert session.held_locks.keys() == {(Undeclared, (1,))}
        assert other.total == 6
        session.commit()
        assert other.total == 6
