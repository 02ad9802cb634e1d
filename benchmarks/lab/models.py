"""The tables, each twice: with declared documents, and with plain classes, as hand-written code uses them.

A declared class has listeners, whose cost hand-written code does not pay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document

DETAILS = 5


class Base(DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "doclock_bench_doc"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    details: Mapped[list[Detail]] = relationship(cascade="all, delete-orphan")


class Detail(Base):
    __tablename__ = "doclock_bench_detail"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    doc_id: Mapped[int] = mapped_column(ForeignKey(Doc.id), index=True)
    value: Mapped[int]


class DeclaredBase(DeclarativeBase):
    pass


@document
class DeclaredDoc(DeclaredBase):
    __tablename__ = "doclock_bench_declared_doc"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    details: Mapped[list[DeclaredDetail]] = relationship(cascade="all, delete-orphan")


class DeclaredDetail(DeclaredBase):
    __tablename__ = "doclock_bench_declared_detail"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    doc_id: Mapped[int] = mapped_column(ForeignKey(DeclaredDoc.id), index=True)
    value: Mapped[int]


numbers: Iterator[int] = itertools.count(1)
"""A new value each time: the ORM would not write an unchanged one."""


def fill(engine: sa.Engine, documents: int = 1, details: int = DETAILS) -> None:
    """Create the tables anew, with the documents 1 to ``documents``."""
    clean(engine)
    Base.metadata.create_all(engine)
    DeclaredBase.metadata.create_all(engine)
    with engine.begin() as connection:
        headers = [{"id": doc, "total": 0} for doc in range(1, documents + 1)]
        for header in (Doc, DeclaredDoc):
            connection.execute(sa.insert(header), headers)
        keys = itertools.product(range(1, documents + 1), range(details))
        rows = [{"id": doc * 100_000 + n, "doc_id": doc, "value": 0} for doc, n in keys]
        for start in range(0, len(rows), 1000):
            for detail in (Detail, DeclaredDetail):
                connection.execute(sa.insert(detail), rows[start : start + 1000])


def clean(engine: sa.Engine) -> None:
    Base.metadata.drop_all(engine)
    DeclaredBase.metadata.drop_all(engine)


def totals_are_right(engine: sa.Engine) -> bool:
    return _are_right(engine, Doc, Detail) and _are_right(engine, DeclaredDoc, DeclaredDetail)


def _are_right(engine: sa.Engine, doc: type[Any], detail: type[Any]) -> bool:
    values = sa.func.coalesce(sa.func.sum(detail.value), 0)
    wrong = sa.select(doc.id).outerjoin(detail).group_by(doc.id, doc.total)
    with engine.connect() as connection:
        return connection.execute(wrong.having(doc.total != values)).first() is None
