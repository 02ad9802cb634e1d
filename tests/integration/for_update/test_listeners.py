"""A listener of the program that changes the document of a with_for_update() before the lock is granted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, registry, relationship

from sa_doclock import LockingSession, UnsavedChanges
from tests.support.models import Customer, Line, Order

pytestmark = pytest.mark.read_committed


class Base(DeclarativeBase):
    pass


class Undeclared(Base):
    __tablename__ = "lk_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    remark: Mapped[str]
    lines: Mapped[list[UndeclaredLine]] = relationship()


class UndeclaredLine(Base):
    __tablename__ = "lk_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("lk_order.id"))
    name: Mapped[str]
    value: Mapped[int]


CLASSES: dict[str, Any] = {"declared": Order, "undeclared": Undeclared}
LINES: dict[Any, Any] = {Order: Line, Undeclared: UndeclaredLine}

Act = Callable[[], None]
Change = Callable[[Any], None]


def _change_header(order: Any) -> None:
    order.total += 1


def _change_line(order: Any) -> None:
    order.lines[0].value += 1


def _add_line(order: Any) -> None:
    order.lines.append(LINES[type(order)](id=77, name="new", value=1))


CHANGES: dict[str, Change] = {"header": _change_header, "line": _change_line, "new": _add_line}


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
    """The session expires the header, where another one has pending changes."""
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


def _once(change: Change, order: Any) -> Act:
    done: list[bool] = []

    def act() -> None:
        if not done:
            done.append(True)
            change(order)

    return act


@pytest.mark.parametrize("when", WHEN.values(), ids=WHEN)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("entity", CLASSES.values(), ids=CLASSES)
def test_it_is_refused(engine: sa.Engine, entity: Any, ask: Any, change: Change, when: Any) -> None:
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
    with engine.connect() as connection:  # nothing was written
        assert connection.scalar(sa.select(Order.total).where(Order.id == 1)) == 30


def test_the_error_names_the_class_of_the_session(engine: sa.Engine) -> None:
    """Another class on the same table, with the same lines, comes first by its name."""
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


@pytest.mark.parametrize("entity", CLASSES.values(), ids=CLASSES)
def test_what_the_program_had_changed_before_is_flushed(engine: sa.Engine, entity: Any) -> None:
    with LockingSession(engine, guard="warn") as session:
        order = session.get_one(Customer, 1)
        order.name = "mine"
        event.listen(session, "do_orm_execute", lambda _: None)
        ASKS["scalars"](session, entity)
        assert not session.dirty
        assert session.held_locks.keys() == {(entity, (1,))}


def test_what_a_listener_changes_of_another_document_stays(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        other = session.get_one(Undeclared, 2)
        with _in_do_orm_execute(session, other, _once(_change_header, other)):
            ASKS["scalars"](session, Undeclared)
        assert session.held_locks.keys() == {(Undeclared, (1,))}
        assert other.total == 6
        session.commit()
        assert other.total == 6
