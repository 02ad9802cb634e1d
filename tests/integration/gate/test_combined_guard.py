"""The write guard in gate.run(): a function may write the document that it was given, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from sa_doclock import DocumentGate, LockingSession, UnlockedWrite, document


class Base(DeclarativeBase):
    pass


@document(parts=("lines",), version=True)
class Bill(Base):
    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column()
    lines: Mapped[list[BillLine]] = relationship(cascade="all, delete-orphan")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class BillLine(Base):
    __tablename__ = "bill_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    bill_id: Mapped[int] = mapped_column(sa.ForeignKey("bill.id"))
    value: Mapped[int]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[LockingSession]]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'bills.db'}")
    Base.metadata.create_all(engine)
    made = sessionmaker(engine, class_=LockingSession)
    with made.begin() as session:
        session.add_all(Bill(id=n, lines=[BillLine(id=n, value=1)]) for n in (1, 2))
    yield made
    engine.dispose()


def test_a_part_of_another_document_is_refused_and_its_own_raises_the_version(
    sessions: sessionmaker[LockingSession],
) -> None:
    gate = DocumentGate()

    def change_other(session: LockingSession, _bill: Bill) -> None:
        session.get_one(BillLine, 2).value = 7

    def change_own(_session: LockingSession, bill: Bill) -> None:
        bill.lines[0].value += 1

    with pytest.raises(UnlockedWrite, match="Bill 2"):
        gate.run(sessions, Bill, 1, change_other)
    gate.run(sessions, Bill, 1, change_own)
    gate.run(sessions, Bill, 1, change_own)
    with sessions() as session:
        assert [session.get_one(BillLine, n).value for n in (1, 2)] == [3, 1]
        assert [session.get_one(Bill, n).version for n in (1, 2)] == [3, 1]
