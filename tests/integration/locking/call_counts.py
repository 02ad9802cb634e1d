"""Counts the calls of sa_doclock's functions that a lock makes, warm.

Run as ``python -m tests.integration.locking.call_counts [URL]``, in a separate process: after other
tests have declared documents, the guard inspects every flush.  The URL is a server's; without it
SQLite is counted.  Prints the calls of each way as JSON, in order, each as ``file:function``,
indented by depth.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

from sqlalchemy import Engine, ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from sa_doclock import LockingSession, LockOptions, document, with_lock
from tests.support.tracing import own_path

INDENT = "  "
ForUpdate = LockOptions.ForUpdate


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "cc_bill"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    items: Mapped[list[Item]] = relationship(order_by="Item.id")


class Item(Base):
    __tablename__ = "cc_item"

    id: Mapped[int] = mapped_column(primary_key=True)
    bill_id: Mapped[int] = mapped_column(ForeignKey("cc_bill.id"))
    value: Mapped[int]


def calls_of(function: Callable[[], Any]) -> list[str]:
    """Return the calls of our functions that this function makes, without garbage collection."""
    calls: list[str] = []
    depth = 0

    def profile(frame: FrameType, what: str, _argument: object) -> None:
        nonlocal depth
        code = frame.f_code
        place = own_path(code.co_filename)
        if place is None:
            return
        if what == "call":
            calls.append(f"{INDENT * depth}{place}:{code.co_name}")
            depth += 1
        elif what == "return":
            depth -= 1

    gc.disable()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def lock(session: LockingSession) -> None:
    session.get_entity(Bill, 1, ForUpdate)


def lock_in_time(session: LockingSession) -> None:
    session.get_entity(Bill, 1, ForUpdate, lock_timeout=3)


def lock_by_scalars(session: LockingSession) -> None:
    session.scalars(with_lock(select(Bill).where(Bill.id == 1), ForUpdate)).all()


def later_lock(make: Callable[[], LockingSession]) -> list[str]:
    """Return the calls of the second lock of a transaction."""
    with make() as session:
        session.get_entity(Bill, 2, ForUpdate)
        calls = calls_of(lambda: lock(session))
        session.rollback()
    return calls


def operate(make: Callable[[], LockingSession]) -> None:
    """Lock, change and save a document in a separate session."""
    with make() as session:
        bill = session.get_one_entity(Bill, 1, ForUpdate)
        bill.items[0].value += 1
        bill.total += 1
        session.save_changes()


def use(make: Callable[[], LockingSession], way: Callable[[LockingSession], None]) -> list[str]:
    """Return the calls of one lock, in a separate session whose transaction has begun."""
    with make() as session:
        session.begin()  # creates the session's lock state, and counts it
        calls = calls_of(lambda: way(session))
        session.rollback()
    return calls


def save(make: Callable[[], LockingSession]) -> list[str]:
    """Return the calls of save_changes() for a document with one changed item."""
    with make() as session:
        bill = session.get_one_entity(Bill, 1, ForUpdate)
        bill.items[0].value += 1
        bill.total += 1
        return calls_of(session.save_changes)


def count(make: Callable[[], LockingSession]) -> dict[str, list[str]]:
    """Return the calls of each way, for a class as it is mapped now."""
    sessions: list[LockingSession] = []
    found = {"idle": calls_of(lambda: sessions.append(make()))}
    found["begin"] = calls_of(sessions[0].begin)
    sessions[0].close()
    for way in (lock, lock_in_time, lock_by_scalars):
        found[way.__name__] = use(make, way)
    found["later lock"] = later_lock(make)
    found["operation"] = calls_of(lambda: operate(make))
    return {**found, "save": save(make)}


def warm(engine: Engine) -> dict[str, list[str]]:
    """Return the calls of each way after a few rounds, first undeclared and then declared."""
    make = sessionmaker(engine, class_=LockingSession)
    plain = [count(make) for _ in range(3)][-1]
    document(parts=("items",))(Bill)
    declared = [count(make) for _ in range(3)][-1]
    return plain | {f"declared {way}": calls for way, calls in declared.items()}


def fill(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with sessionmaker(engine).begin() as session:
        items = [Item(id=number, value=number) for number in range(1, 6)]
        session.add_all([Bill(id=1, total=15, items=items), Bill(id=2, total=0)])


def main() -> None:
    """Print the calls of each way."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(*sys.argv[1:] or [f"sqlite:///{folder}/calls.db"])
        fill(engine)
        print(json.dumps(warm(engine)))
        Base.metadata.drop_all(engine)
        engine.dispose()


if __name__ == "__main__":
    main()
