"""A row that is made of several rows is read once its header is locked."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Integer, func, literal_column, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    column_property,
    mapped_column,
    query_expression,
    with_polymorphic,
)

from sa_doclock.core.documents import mapper_of, spans_rows
from tests.support.rows import rows


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


class CountedByDefault(Base):
    __tablename__ = "spans_default"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain: Mapped[int] = query_expression(select(func.count(Plain.id)).scalar_subquery())


class CountedAsText(Base):
    __tablename__ = "spans_text"
    id: Mapped[int] = mapped_column(primary_key=True)
    plain = column_property(literal_column("(SELECT count(*) FROM spans_plain)", Integer))


class KindBySubquery(Base):
    __tablename__ = "spans_kind"
    id: Mapped[int] = mapped_column(primary_key=True)
    __mapper_args__ = {  # noqa: RUF012
        "polymorphic_on": select(func.count(Plain.id)).scalar_subquery(),
        "polymorphic_identity": 0,
    }


class WithSubclasses(Base):
    __tablename__ = "spans_base"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": 0}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]


class CountedInSubclass(WithSubclasses):
    __mapper_args__ = {"polymorphic_identity": 1}  # noqa: RUF012
    plain = column_property(select(func.count(Plain.id)).scalar_subquery())


class WithInlineSubclass(Base):
    __tablename__ = "spans_inline"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": 0}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]


class CountedInline(WithInlineSubclass):
    __mapper_args__ = {"polymorphic_identity": 1, "polymorphic_load": "inline"}  # noqa: RUF012
    plain = column_property(select(func.count(Plain.id)).scalar_subquery())


class WithJoinedSubclass(Base):
    __tablename__ = "spans_outer"
    __mapper_args__ = {  # noqa: RUF012
        "polymorphic_on": "kind",
        "polymorphic_identity": 0,
        "with_polymorphic": "*",
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]


class JoinedInline(WithJoinedSubclass):
    __tablename__ = "spans_outer_joined"
    __mapper_args__ = {"polymorphic_identity": 1}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey(WithJoinedSubclass.id), primary_key=True)


class GivenByOption(Base):
    __tablename__ = "spans_option"
    id: Mapped[int] = mapped_column(primary_key=True)
    given: Mapped[int] = query_expression()


@rows(
    ("entity", "expected", "undeferred"),
    [
        (Plain, False, False),
        (Joined, True, True),
        (Counted, True, True),
        (CountedLater, False, True),
        (GivenByOption, False, True),
        (CountedByDefault, True, True),
        (CountedAsText, True, True),
        (KindBySubquery, True, True),
        (WithSubclasses, False, False),
        (CountedInSubclass, True, True),
        (with_polymorphic(WithSubclasses, "*"), True, True),
        (aliased(WithSubclasses), False, False),
        (WithInlineSubclass, True, True),
        (aliased(WithInlineSubclass), True, True),
        (WithJoinedSubclass, True, True),
        (aliased(WithJoinedSubclass, flat=True), True, True),
    ],
)
def test_which_rows_are_made_of_several(entity: Any, expected: bool, undeferred: bool) -> None:
    assert spans_rows(entity) is expected
    assert spans_rows(entity, undeferred=True) is undeferred
    if isinstance(entity, type):
        assert spans_rows(mapper_of(entity)) is expected
