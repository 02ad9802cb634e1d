"""Writes through a second class mapped on the table of a header or a part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, ForeignKey, event, insert, inspect, update
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    configure_mappers,
    mapped_column,
    relationship,
    sessionmaker,
)

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.models import Line, Order
from tests.integration.guard.steps import Action, hold, refused, writes_sent
from tests.support.rows import rows


class Other(DeclarativeBase):
    """The base of classes without documents."""


class PlainOrder(Other):
    __table__ = Order.__table__


class PlainLine(Other):
    """The foreign key has its database name here."""

    __table__ = Line.__table__


class ReferringLine(Other):
    __table__ = Line.__table__
    order: Mapped[Order] = relationship(Order, overlaps="lines, order")


def changed(session: LockingSession, entity: Any, **values: Any) -> None:
    row = session.get_one(entity, 1)
    for name, value in values.items():
        setattr(row, name, value)
    session.flush()


def deleted(session: LockingSession, entity: Any) -> None:
    session.delete(session.get_one(entity, 1))
    session.flush()


def added(session: LockingSession) -> None:
    session.add(PlainLine(id=99, order_no=1, value=1))
    session.flush()


ACTIONS: dict[str, Action] = {
    "header changed": lambda s: changed(s, PlainOrder, total=77),
    "part changed": lambda s: changed(s, PlainLine, value=77),
    "part deleted": lambda s: deleted(s, PlainLine),
    "part added": added,
    "bulk, header": lambda s: s.bulk_update_mappings(inspect(PlainOrder), [{"id": 1, "total": 77}]),
    "bulk, part": lambda s: s.bulk_update_mappings(inspect(PlainLine), [{"id": 1, "value": 77}]),
    "update header": lambda s: s.execute(update(PlainOrder).filter_by(id=1).values(total=7)),
    "update part": lambda s: s.execute(update(PlainLine).filter_by(id=1).values(value=7)),
}
each_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)


@each_action
def test_a_write_needs_the_lock_of_the_document(session: LockingSession, action: Action) -> None:
    with refused(session, Order, 1):
        action(session)


def test_with_the_lock_it_goes_through(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    with writes_sent(session) as sent:
        changed(session, PlainOrder, total=77)
        changed(session, PlainLine, value=77)
        added(session)
        session.delete(session.get_one(PlainLine, 2))
        session.flush()
        session.execute(update(PlainOrder).filter_by(id=1).values(total=7))
        session.execute(update(PlainLine).filter_by(order_no=1).values(value=7))
    session.commit()
    assert sent
    assert held


def test_a_moved_part_needs_both_locks(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        changed(session, PlainLine, order_no=2)
    assert held


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("second_class", [True, False], ids=["second class", "post_update"])
def test_a_listener_that_moves_a_row_without_an_event_by_its_new_owner(
    engine: Engine, *, second_class: bool
) -> None:
    """SQLAlchemy fires no event for its own UPDATE, and the guard sees none of a second class."""

    class Base(DeclarativeBase):
        pass

    @document(parts=("leaves",))
    class Tree(Base):
        __tablename__ = "gd_tree"
        id: Mapped[int] = mapped_column(primary_key=True)
        height: Mapped[int] = mapped_column(default=0)

    class Leaf(Base):
        __tablename__ = "gd_leaf"
        id: Mapped[int] = mapped_column(primary_key=True)
        tree_id: Mapped[int] = mapped_column(ForeignKey("gd_tree.id"))

    class PlainLeaf(Base):
        __table__ = Leaf.__table__

    moved: Any = PlainLeaf if second_class else Leaf
    Tree.leaves = relationship(Leaf)
    Tree.others = relationship(moved, overlaps="leaves", post_update=not second_class)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Tree), [{"id": 1}, {"id": 2}])
        connection.execute(insert(Leaf), [{"id": 2, "tree_id": 2}])
    with LockingSession(engine) as session:
        tree: Any = hold(session, Tree, 1)[0]
        leaf = session.get_one(moved, 2)
        assert tree.others == []
        tree.height += 1
        event.listen(session, "before_flush", lambda *_: tree.others.append(leaf))
        with refused(session, Tree, 2, sent_first=True):
            session.flush()


@rows(
    "change",
    [
        lambda _session, row: setattr(row, "value", 7),
        lambda session, row: session.delete(row),
        lambda session, _row: session.add(PlainLine(id=99, order_no=2)),
        lambda session, _row: setattr(session.get_one(PlainLine, 1), "order_no", 2),
    ],
)
def test_what_a_late_listener_does_needs_the_lock(
    session: LockingSession, change: Callable[[LockingSession, Any], None]
) -> None:
    held = hold(session, Order, 1)[0]
    row = session.get_one(PlainLine, 3)
    event.listen(session, "before_flush", lambda *_: change(session, row), once=True)
    held.total = 7
    with refused(session, Order, 2, sent_first=True):
        session.flush()
    session.rollback()


@rows("number", [99, 1])
def test_a_row_that_comes_to_a_document_by_its_own_relationship_needs_the_lock(
    session: LockingSession, number: int
) -> None:
    held = hold(session, Order, 1)
    with session.no_autoflush:
        row = session.get(ReferringLine, number) or ReferringLine(id=number)
        row.order = session.get_one(Order, 2)
    session.add(row)
    with refused(session, Order, 2, sent_first=True):
        session.flush()
    session.rollback()
    assert held


# --------------------------------------------------------------------------------------------------
# Two threads create the first sessions of a class, or use new mappers, at once.
#
# SQLAlchemy collects the listeners of a Session class at its first session, without a lock.
# A thread that came in between found no listeners: its lock was not noted, and its writes were not
# guarded.  A sessionmaker creates a class, so this is the first moment of a program with threads.
#
# SQLAlchemy reports that mappers are configured when other threads already use them.

EVENTS_OF_SQLALCHEMY = sa.event.__name__


class Interruption:
    """Calls a function once, in another thread, before a line of SQLAlchemy's events.

    :param line: the number of lines that run before it.
    """

    def __init__(self, line: int, function: Callable[[], None]) -> None:
        self.lines_left = line
        self._function = function

    def __call__(self, frame: FrameType, what: str, _arg: object) -> Any:
        if not frame.f_globals["__name__"].startswith(EVENTS_OF_SQLALCHEMY):
            return None
        if what == "line":
            self.lines_left -= 1
            if self.lines_left == -1:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self._function).result()
        return self


def in_two_threads(
    maker: sessionmaker[LockingSession], line: int, use: Callable[[LockingSession], None]
) -> bool:
    """Make and use the first session; before that line make and use another.

    :returns: whether there are that many lines.
    """

    def other() -> None:
        with maker() as session:
            use(session)

    interruption, before = Interruption(line, other), sys.gettrace()
    sys.settrace(interruption)
    try:
        session = maker()
        session.dispatch  # noqa: B018  # its first use collects the listeners
    finally:
        sys.settrace(before)
    with session:
        use(session)
    return interruption.lines_left < 0


@pytest.mark.databases("sqlite")
def test_both_sessions_are_guarded_and_have_their_locks(engine: Engine) -> None:
    calls: list[LockingSession] = []

    def heard(session: LockingSession, *_: object) -> None:
        calls.append(session)

    def use(session: LockingSession) -> None:
        session.get_one(Order, 1).total += 1
        with pytest.raises(UnlockedWrite):
            session.flush()
        session.rollback()
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        assert session.held_locks == {(Order, (1,)): LockOptions.ForUpdate}
        assert calls.count(session) == 1

    event.listen(LockingSession, "lock_acquired", heard)
    try:
        line = 0
        while in_two_threads(sessionmaker(engine, class_=LockingSession), line, use):
            calls.clear()
            line += 1
    finally:
        event.remove(LockingSession, "lock_acquired", heard)
    assert line > 1  # at least one line of SQLAlchemy's events was interrupted


@pytest.mark.databases("sqlite")
def test_a_document_is_guarded_before_its_mappers_are_said_to_be_configured(engine: Engine) -> None:
    configure_mappers()  # configures the mappers of other tests

    class Base(DeclarativeBase):
        pass

    @document
    class Invoice(Base):
        __tablename__ = "invoice"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int]

    class Note(Base):
        __tablename__ = "note"
        id: Mapped[int] = mapped_column(primary_key=True)

    def write() -> None:
        with LockingSession(engine) as session:
            invoice = session.get_one(Invoice, 1)
            session.add(Note())

            @event.listens_for(session, "before_flush")  # its change shows in the row's event
            def change(*_: object) -> None:
                invoice.total += 1

            with pytest.raises(UnlockedWrite):
                session.flush()

    def in_a_thread() -> None:  # sa_doclock's listeners run after this one
        with ThreadPoolExecutor(1) as pool:
            pool.submit(write).result()

    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        connection.exec_driver_sql("INSERT INTO invoice VALUES (1, 10)")
    event.listen(Mapper, "after_configured", in_a_thread, insert=True, once=True)
    Base.registry.configure()
    write()
