"""The document of these tests: order 1 has the lines 10 and 20, order 2 has the line 5."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document


class Base(DeclarativeBase):
    pass


@document(parts=("lines",))
class Order(Base):
    __tablename__ = "fw_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "fw_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("fw_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


def fill(connection: sa.Connection) -> None:
    """Put the rows in the tables, which are empty."""
    rows: dict[type[Base], list[dict[str, Any]]] = {
        Order: [{"id": 1, "total": 30}, {"id": 2, "total": 5}],
        Line: [
            {"order_id": 1, "value": 10},
            {"order_id": 1, "value": 20},
            {"order_id": 2, "value": 5},
        ],
    }
    for entity, values in rows.items():
        connection.execute(sa.insert(entity), values)


def add_line(order: Order, value: int) -> int:
    """Change the order as a program does; return its new total."""
    order.lines.append(Line(value=value))
    order.total = sum(line.value for line in order.lines)
    return order.total
