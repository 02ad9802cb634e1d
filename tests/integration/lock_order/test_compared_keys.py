"""The keys of many documents are found by hash, and not each compared with all the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database

ROWS = 60
compared: Counter[str] = Counter()


class Number(int):
    """An integer that counts its comparisons."""

    def __eq__(self, other: object) -> bool:
        compared["=="] += 1
        return int.__eq__(self, other) is True

    __hash__ = int.__hash__


class Numbered(sa.TypeDecorator[Number]):
    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Number | None:
        return None if value is None else Number(value)


class Base(DeclarativeBase):
    pass


class Deed(Base):
    __tablename__ = "ck_deed"
    id: Mapped[Number] = mapped_column(Numbered, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(sa.String(10))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "deed"}  # noqa: RUF012


class Will(Deed):
    __tablename__ = "ck_will"
    __mapper_args__ = {"polymorphic_identity": "will"}  # noqa: RUF012
    id: Mapped[Number] = mapped_column(Numbered, sa.ForeignKey("ck_deed.id"), primary_key=True)


@pytest.mark.parametrize("entity", [Deed, Will])
def test_each_key_is_compared_a_few_times(
    database: Database, engine: sa.Engine, entity: type[Deed]
) -> None:
    database.create(Base.metadata)
    with LockingSession(engine) as session:
        session.add_all(entity(id=Number(n)) for n in range(ROWS))
        session.commit()
        session.expunge_all()
        compared.clear()
        assert len(session.get_entities(entity, range(ROWS), LockOptions.ForUpdate)) == ROWS
    assert compared["=="] < 10 * ROWS
