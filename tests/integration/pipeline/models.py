"""Models whose flush needs the server's answer: versions, server defaults, deferred constraints."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from tests.support.databases import PIPELINED

# --------------------------------------------------------------------------------------------------
# Marks for tests whose sessions set pipelining themselves.

ON_POSTGRESQL = [pytest.mark.databases("postgresql"), pytest.mark.not_databases(PIPELINED)]


# --------------------------------------------------------------------------------------------------
# Models whose flush needs an answer: versions, server defaults, deferred constraints.


class Base(DeclarativeBase):
    """Tables of these tests alone."""


class Bill(Base):
    """Versioned: an UPDATE that matches no row has lost against another session."""

    __tablename__ = "pl_bill"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    version: Mapped[int] = mapped_column()
    items: Mapped[list[Item]] = relationship(
        cascade="all, delete-orphan", order_by="Item.id", back_populates="bill"
    )
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Item(Base):
    """The server generates its key and its stamp; COMMIT checks its foreign key."""

    __tablename__ = "pl_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    bill_id: Mapped[int] = mapped_column(
        ForeignKey("pl_bill.id", deferrable=True, initially="DEFERRED")
    )
    name: Mapped[str] = mapped_column(unique=True)
    value: Mapped[int]
    stamp: Mapped[str] = mapped_column(server_default="new", server_onupdate=sa.FetchedValue())
    bill: Mapped[Bill] = relationship(back_populates="items")


class Note(Base):
    """Not versioned; the program provides all its values."""

    __tablename__ = "pl_note"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]
    number: Mapped[int] = mapped_column(sa.CheckConstraint("number < 100"), default=0)
    data: Mapped[Any] = mapped_column(JSON, nullable=True)


def fill(connection: sa.Connection) -> None:
    """Insert bill 1 with two items, bill 2 with none, and three notes."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    connection.execute(
        sa.insert(Bill),
        [{"id": 1, "total": 30, "version": 1}, {"id": 2, "total": 0, "version": 1}],
    )
    connection.execute(
        sa.insert(Item),
        [
            {"id": -2, "bill_id": 1, "name": "a", "value": 10},
            {"id": -1, "bill_id": 1, "name": "b", "value": 20},
        ],
    )
    connection.execute(sa.insert(Note), [{"id": n, "text": "", "number": n} for n in (1, 2, 3)])
