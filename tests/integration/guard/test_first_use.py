"""Two threads make the first sessions of a class, or use new mappers, at once.

SQLAlchemy collects the listeners of a Session class when its first session is made, without a lock.
A thread that came in between found none of them: its lock was not noted, and its writes were not
guarded.  A sessionmaker makes a class, so this is the first moment of a program with threads.

SQLAlchemy tells that mappers are configured when other threads use them already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    configure_mappers,
    mapped_column,
    sessionmaker,
)

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, document
from tests.integration.guard.models import Order

pytestmark = pytest.mark.databases("sqlite")

EVENTS_OF_SQLALCHEMY = sa.event.__name__


class Interruption:
    """Calls a function once, in another thread, before a line of SQLAlchemy's events.

    :param line: how many lines are run before it.
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

    :returns: whether there are so many lines.
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
    assert line > 1  # SQLAlchemy's events were interrupted at all


def test_a_document_is_guarded_before_its_mappers_are_said_to_be_configured(engine: Engine) -> None:
    configure_mappers()  # those of other tests

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

            @event.listens_for(session, "before_flush")  # its change is seen in the row's event
            def change(*_: object) -> None:
                invoice.total += 1

            with pytest.raises(UnlockedWrite):
                session.flush()

    def in_a_thread() -> None:  # the listeners of sa_doclock come after this one
        with ThreadPoolExecutor(1) as pool:
            pool.submit(write).result()

    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        connection.exec_driver_sql("INSERT INTO invoice VALUES (1, 10)")
    event.listen(Mapper, "after_configured", in_a_thread, insert=True, once=True)
    Base.registry.configure()
    write()
