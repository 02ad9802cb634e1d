"""A declared order with lines, and a document that comes before it in the order of locking."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document


class Base(DeclarativeBase):
    pass


@document
class Order(Base):
    __tablename__ = "ms_order"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "ms_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(ForeignKey("ms_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


@document
class Customer(Base):
    __tablename__ = "ms_customer"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    orders: Mapped[int]


ORDER_1 = (30, [10, 20])
"""Order 1 as every test finds it: its total, and the values of its lines."""


def fill(connection: sa.Connection) -> None:
    """Put the rows in the tables, and take every other away."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    connection.execute(sa.insert(Customer), [{"id": 1, "orders": 2}])
    connection.execute(sa.insert(Order), [{"id": 1, "total": 30}, {"id": 2, "total": 5}])
    lines = [(1, 1, 10), (2, 1, 20), (3, 2, 5)]
    connection.execute(
        sa.insert(Line), [{"id": i, "order_id": order, "value": v} for i, order, v in lines]
    )
