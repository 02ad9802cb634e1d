"""Parts through an alias, and the columns of single-table subclasses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    configure_mappers,
    mapped_column,
    relationship,
)

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.locking.steps import recorded
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# View-only relationships to ``aliased()``, some row-limited: loaded, fresh, and not owners.

ForUpdate = LockOptions.ForUpdate


class Base(DeclarativeBase):
    pass


class Race(Base):
    __tablename__ = "al_race"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]


class Run(Base):
    __tablename__ = "al_run"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    race_id: Mapped[int] = mapped_column(sa.ForeignKey(Race.id))
    value: Mapped[int]


_ranked = sa.select(
    Run,
    sa.func.row_number().over(order_by=Run.value.desc(), partition_by=Run.race_id).label("rank"),
).alias()
_best: Any = aliased(Run, _ranked)
_high: Any = aliased(Run)
_of_race = _best.race_id == Race.id
best = relationship(_best, primaryjoin=sa.and_(_of_race, _ranked.c.rank < 3), viewonly=True)
high = relationship(
    _high,
    primaryjoin=sa.and_(_high.race_id == Race.id, _high.value > 15),
    viewonly=True,
    lazy="raise",
)
Race.__mapper__.add_property("best", best)
Race.__mapper__.add_property("high", high)
configure_mappers()


@pytest.fixture
def session_aliased(database: Database) -> Iterator[LockingSession]:
    database.create(Base.metadata)
    repeatable = database.name in {"mysql", "mariadb"}
    options = {"isolation_level": "READ COMMITTED"} if repeatable else {}
    with LockingSession(database.engine(**options)) as session:
        session.add_all([Race(id=1, total=60), Race(id=2, total=5)])
        session.flush()
        session.add_all([Run(id=n, race_id=1, value=10 * n) for n in (1, 2, 3)])
        session.add(Run(id=4, race_id=2, value=5))
        session.commit()
        session.expunge_all()
        yield session


def _values(runs: Any) -> list[int]:
    return sorted(run.value for run in runs)


def test_get_document_loads_them(session_aliased: LockingSession) -> None:
    race: Any = session_aliased.get_document(Race, 1, ForUpdate)
    with recorded(session_aliased.connection()) as sent:
        assert (_values(race.best), _values(race.high)) == ([20, 30], [20, 30])
    assert sent == []
    first, second = session_aliased.get_documents(Race, [1, 2], ForUpdate)
    assert (_values(first.best), _values(second.best), _values(second.high)) == ([20, 30], [5], [])  # type: ignore[attr-defined]


def test_they_are_fresh_under_the_lock(session_aliased: LockingSession) -> None:
    race: Any = session_aliased.get_document(Race, 1)
    assert _values(race.best) == [20, 30]
    kept = list(race.best)
    session_aliased.commit()
    with LockingSession(session_aliased.get_bind()) as other:
        other.execute(sa.update(Run).where(Run.id == 3).values(value=31))
        other.execute(sa.delete(Run).where(Run.id == 2))
        other.commit()
    again: Any = session_aliased.get_document(Race, 1, ForUpdate)
    assert again is race
    assert (_values(race.best), _values(race.high)) == ([10, 31], [31])
    assert len(kept) == 2


@pytest.mark.parametrize("method", ["get_entity", "get_document"])
def test_pending_changes_are_found_by_them(session_aliased: LockingSession, method: str) -> None:
    dirty = session_aliased.get_one(Run, 4)
    dirty.value = 6
    assert getattr(session_aliased, method)(Race, 1, ForUpdate) is not None  # of another race
    with pytest.raises(UnsavedChanges):
        getattr(session_aliased, method)(Race, 2, ForUpdate)
    dirty.value = 5
    assert getattr(session_aliased, method)(Race, 2, ForUpdate) is not None


# --------------------------------------------------------------------------------------------------
# get_document() loads the columns of single-table subclasses, for the header and its parts.


class SingleTableBase(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


class Case(SingleTableBase):
    __tablename__ = "single_case"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "case"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    steps: Mapped[list[Step]] = relationship(order_by="Step.id")


class Appeal(Case):
    __mapper_args__ = {"polymorphic_identity": "appeal"}  # noqa: RUF012
    court: Mapped[str | None]


class Step(SingleTableBase):
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
    database.create(SingleTableBase.metadata)
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
