"""An error that could name one of many objects names the first of the session, in each run the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_doclock import DocLockError, LockingSession, LockOptions, document
from tests.support.rows import rows

MANY = 40


class Base(DeclarativeBase):
    pass


@document(parts=("lines",))
class Bill(Base):
    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(order_by="Line.id")


class Line(Base):
    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]
    bill_id: Mapped[int] = mapped_column(ForeignKey("bill.id"))


def change_lines(session: Session) -> Bill:
    """Change the lines, the last one first; Line 1 was loaded first."""
    bill = session.get_one(Bill, 1)
    for line in reversed(bill.lines):
        line.value += 1
    return bill


def flush(session: LockingSession) -> None:
    change_lines(session)
    session.flush()


def lock(session: LockingSession) -> None:
    change_lines(session).total += 1
    session.get_entity(Bill, 1, LockOptions.ForUpdate)


def lock_by_program(session: LockingSession) -> None:
    session.autoflush = False
    change_lines(session)
    session.connection().exec_driver_sql("UPDATE line SET value = 100")  # as another would
    session.scalars(sa.select(Bill).with_for_update()).all()


@rows(
    "step, named",
    [
        (flush, "^Bill 1 on sqlite: Line 1 would be changed"),
        (lock, "^Bill 1 FOR UPDATE on sqlite: it has pending changes"),
        (lock_by_program, "'value' of Line 1 "),
    ],
)
def test_it_names_the_first(
    tmp_path: Path, step: Callable[[LockingSession], None], named: str
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/{step.__name__}.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Bill(id=1, total=0, lines=[Line(value=0) for _ in range(MANY)]))
        session.commit()
    with LockingSession(engine) as locking, pytest.raises(DocLockError, match=named):
        step(locking)
    engine.dispose()
