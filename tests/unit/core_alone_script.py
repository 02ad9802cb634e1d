"""Locks documents on SQLite with few features or none; test_session_parts.py runs it in a copy of the package.

The argument is the class of the sessions: ``core.session.CoreSession``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

import sa_doclock.core.session as copied
from sa_doclock.core.documents import document
from sa_doclock.core.session_options import SessionOptions
from sa_doclock.core.statements import with_lock
from sa_doclock.errors import LockMisuse, LockNotAvailable, UnlockedWrite
from sa_doclock.options import LockOptions

MODULE, _, NAME = sys.argv[1].rpartition(".")
LockingSession: Any = getattr(import_module(f"sa_doclock.{MODULE}"), NAME)
FEATURES = NAME == "LockingSession"
WAIT: dict[str, Any] = (
    {"lock_timeout": 0.05} if FEATURES else {"options": SessionOptions({}, lock_timeout=0.05)}
)
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


class Base(DeclarativeBase):
    pass


@document(parts=["lines"])
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(back_populates="order")


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("orders.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


def refused(kind: type[Exception], call: object) -> bool:
    try:
        call()  # type: ignore[operator]
    except kind:
        return True
    return False


def lock_and_read(engine: sa.Engine) -> None:
    """Test the lock, the rows that it reads again, the end of the wait, and the guard."""
    with LockingSession(engine) as one, LockingSession(engine, **WAIT) as other:
        order = one.get_one(Order, 1)
        assert [line.value for line in order.lines] == [5]
        one.commit()
        with other.begin():  # changes the objects in the first session
            changed = other.get_one_entity(Order, 1, ForUpdate)
            changed.total, changed.lines[0].value = 11, 6
        order = one.get_one_document(Order, 1, ForUpdate)
        assert (order.total, [line.value for line in order.lines]) == (11, [6])
        assert one.held_locks == {(Order, (1,)): ForUpdate}
        assert refused(LockNotAvailable, lambda: other.get_entity(Order, 1, ForUpdate))
        other.rollback()
        one.commit()
        if FEATURES:
            other.get_one(Order, 1).total = 12
            assert refused(UnlockedWrite, other.flush)


def lock_by_statement(engine: sa.Engine) -> None:
    """Test a shared lock, a set, and SQLAlchemy's own ``with_for_update()``, which only a feature adopts."""
    with LockingSession(engine) as one:
        one.get_entity(Order, 1, SharedRead)
        assert one.held_locks == {(Order, (1,)): SharedRead}
        one.rollback()
        assert len(one.scalars(with_lock(sa.select(Order), ForUpdate)).all()) == 1
        assert one.held_locks == {(Order, (1,)): ForUpdate}
        one.rollback()
        one.scalars(sa.select(Order).with_for_update()).one().total = 13
        assert one.held_locks == ({(Order, (1,)): ForUpdate} if FEATURES else {})
        one.commit()
        if FEATURES:
            assert refused(LockMisuse, lambda: one.get_entity(Order, 1, ForUpdate, checkout=1))


def main() -> None:
    here = Path(__file__).parent
    assert here in Path(str(copied.__file__)).parents, copied.__file__
    engine = sa.create_engine(f"sqlite:///{here / 'orders.db'}")
    Base.metadata.create_all(engine)
    with sa.orm.Session(engine) as session:
        session.add(Order(id=1, total=10, lines=[Line(id=1, value=5)]))
        session.commit()
    lock_and_read(engine)
    lock_by_statement(engine)
    engine.dispose()
    assert ("sa_doclock.features" in sys.modules) == FEATURES
    missing = {"sa_doclock.features.gate", "sa_doclock.features.checkouts", "sa_doclock.tools"}
    assert not missing & set(sys.modules)
    print("done")


if __name__ == "__main__":
    main()
