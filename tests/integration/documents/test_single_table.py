"""get_document() loads the columns of single-table subclasses, of the header and of its parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import recorded
from tests.support.databases import Database


class Base(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


class Case(Base):
    __tablename__ = "single_case"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "case"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    steps: Mapped[list[Step]] = relationship(order_by="Step.id")


class Appeal(Case):
    __mapper_args__ = {"polymorphic_identity": "appeal"}  # noqa: RUF012
    court: Mapped[str | None]


class Step(Base):
    __tablename__ = "single_step"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "step"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    case_id: Mapped[int] = mapped_column(ForeignKey(Case.id))


class Hearing(Step):
    __mapper_args__ = {"polymorphic_identity": "hearing"}  # noqa: RUF012
    room: Mapped[str | None]


class Letter(Step):
    __mapper_args__ = {"polymorphic_identity": "letter", "polymorphic_load": "inline"}  # noqa: RUF012
    address: Mapped[str | None]


@pytest.fixture
def session(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    with LockingSession(database.engine()) as session:
        session.add(Appeal(id=1, court="Bern"))
        session.flush()
        session.add_all([Hearing(id=n, case_id=1, room=f"room {n}") for n in (1, 2)])
        session.add(Letter(id=3, case_id=1, address="Basel"))
        session.commit()
        session.expunge_all()
        yield session


@pytest.mark.parametrize("lock", [LockOptions.ForUpdate, LockOptions.None_])
@pytest.mark.parametrize("entity", [Case, Appeal])
def test_nothing_is_left_to_be_loaded(
    session: LockingSession, entity: type[Case], lock: LockOptions
) -> None:
    case = session.get_document(entity, 1, lock)
    assert isinstance(case, Appeal)
    with recorded(session.connection()) as sent:
        assert case.court == "Bern"
        assert [step.kind for step in case.steps] == ["hearing", "hearing", "letter"]
        assert [getattr(step, "room", None) for step in case.steps] == ["room 1", "room 2", None]
        assert [getattr(step, "address", None) for step in case.steps] == [None, None, "Basel"]
    assert sent == []


def test_the_parts_of_a_class_take_one_statement(session: LockingSession) -> None:
    with recorded(session.connection()) as sent:
        session.get_document(Case, 1)
    assert len([one for one in sent if "single_" in one]) == 4  # case, appeal, steps, hearings
