"""A row that is made of several rows is read once its header is locked."""

from __future__ import annotations

import pytest
from sqlalchemy import ForeignKey, func, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    column_property,
    mapped_column,
    query_expression,
)

from sa_doclock.documents import mapper_of, spans_rows


class Base(DeclarativeBase):
    pass


class Plain(Base):
    __tablename__ = "spans_plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column()
    double = column_property(size * 2)


class Joined(Plain):
    __tablename__ = "spans_joined"
    id: Mapped[int] = mapped_column(ForeignKey(Plain.id), primary_key=True)


class Counted(Base):
    __tablename__ = "spans_counted"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain = column_property(select(func.count(Plain.id)).scalar_subquery())


class CountedLater(Base):
    __tablename__ = "spans_later"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain = column_property(select(func.count(Plain.id)).scalar_subquery(), deferred=True)


class GivenByOption(Base):
    __tablename__ = "spans_option"
    id: Mapped[int] = mapped_column(primary_key=True)
    given: Mapped[int] = query_expression()


@pytest.mark.parametrize(
    ("entity", "expected", "undeferred"),
    [
        (Plain, False, False),
        (Joined, True, True),
        (Counted, True, True),
        (CountedLater, False, True),
        (GivenByOption, False, True),
    ],
)
def test_which_rows_are_made_of_several(
    entity: type[Base], expected: bool, undeferred: bool
) -> None:
    assert spans_rows(mapper_of(entity)) is expected
    assert spans_rows(mapper_of(entity), undeferred=True) is undeferred
