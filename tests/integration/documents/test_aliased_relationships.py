"""View-only relationships to an ``aliased()``, row-limited ones among them: loaded, fresh, no owners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
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
def session(database: Database) -> Iterator[LockingSession]:
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


def test_get_document_loads_them(session: LockingSession) -> None:
    race: Any = session.get_document(Race, 1, ForUpdate)
    with recorded(session.connection()) as sent:
        assert (_values(race.best), _values(race.high)) == ([20, 30], [20, 30])
    assert sent == []
    first, second = session.get_documents(Race, [1, 2], ForUpdate)
    assert (_values(first.best), _values(second.best), _values(second.high)) == ([20, 30], [5], [])  # type: ignore[attr-defined]


def test_they_are_fresh_under_the_lock(session: LockingSession) -> None:
    race: Any = session.get_document(Race, 1)
    assert _values(race.best) == [20, 30]
    kept = list(race.best)
    session.commit()
    with LockingSession(session.get_bind()) as other:
        other.execute(sa.update(Run).where(Run.id == 3).values(value=31))
        other.execute(sa.delete(Run).where(Run.id == 2))
        other.commit()
    again: Any = session.get_document(Race, 1, ForUpdate)
    assert again is race
    assert (_values(race.best), _values(race.high)) == ([10, 31], [31])
    assert len(kept) == 2


@pytest.mark.parametrize("method", ["get_entity", "get_document"])
def test_pending_changes_are_found_by_them(session: LockingSession, method: str) -> None:
    dirty = session.get_one(Run, 4)
    dirty.value = 6
    assert getattr(session, method)(Race, 1, ForUpdate) is not None  # of another race
    with pytest.raises(UnsavedChanges):
        getattr(session, method)(Race, 2, ForUpdate)
    dirty.value = 5
    assert getattr(session, method)(Race, 2, ForUpdate) is not None
