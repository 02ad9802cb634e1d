"""A document with parts of every kind, each row with a counter; and what maps the same tables again."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document

CASCADE = "all, delete-orphan"


class Base(DeclarativeBase):
    """The declared classes."""


class Again(DeclarativeBase):
    """Second classes on their tables."""


def key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("lines", "remarks", "errands"), version=True)
class Order(Base):
    __tablename__ = "at_order"
    id: Mapped[int] = key()
    version: Mapped[int] = mapped_column()
    count: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(cascade=CASCADE, back_populates="order")
    remarks: Mapped[list[Remark]] = relationship(
        primaryjoin=lambda: sa.and_(
            Order.id == sa.orm.foreign(Remark.owner_id), Remark.owner_kind == "order"
        )
    )
    errands: Mapped[list[Errand]] = relationship()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Line(Base):
    __tablename__ = "at_line"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column(ForeignKey("at_order.id"), index=True)
    count: Mapped[int] = mapped_column(default=0)
    order: Mapped[Order] = relationship(back_populates="lines")


class Remark(Base):
    """Of an order, or of somebody else, as ``owner_kind`` says."""

    __tablename__ = "at_remark"
    id: Mapped[int] = key()
    owner_id: Mapped[int]
    owner_kind: Mapped[str] = mapped_column(String(10))
    count: Mapped[int] = mapped_column(default=0)


class Task(Base):
    """In no document, but for one of its subclasses."""

    __tablename__ = "at_task"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(10))
    count: Mapped[int] = mapped_column(default=0)


class Errand(Task):
    __mapper_args__ = {"polymorphic_identity": "errand"}  # noqa: RUF012
    order_id: Mapped[int | None] = mapped_column(ForeignKey("at_order.id"))


class OrderAgain(Again):
    __table__ = Order.__table__


class LineAgain(Again):
    __table__ = Line.__table__


ORDERS: Any = Order.__table__
LINES: Any = Line.__table__
DOCS = (1, 2)
NEW = 3
"""The document that some programs insert."""
TOKEN = "tenant"
"""The identity token under which some programs read a second object of a row."""

#: The rows of document N have the keys 10 * N and more.
ROWS: dict[str, list[dict[str, Any]]] = {
    "at_order": [{"id": doc, "version": 1} for doc in DOCS],
    "at_line": [{"id": 10 * doc, "order_id": doc} for doc in DOCS],
    "at_remark": [
        *({"id": 10 * doc, "owner_id": doc, "owner_kind": "order"} for doc in DOCS),
        *({"id": 10 * doc + 1, "owner_id": doc, "owner_kind": "client"} for doc in DOCS),
    ],
    "at_task": [
        *({"id": 10 * doc, "kind": "errand", "order_id": doc} for doc in DOCS),
        *({"id": 10 * doc + 1, "kind": "task", "order_id": doc} for doc in DOCS),
    ],
}


def new_rows() -> list[Any]:
    """Return the objects of the new document."""
    return [
        Order(id=NEW, count=0),
        Line(id=10 * NEW, order_id=NEW, count=0),
        Remark(id=10 * NEW, owner_id=NEW, owner_kind="order", count=0),
        Errand(id=10 * NEW, order_id=NEW, count=0),
        Remark(id=10 * NEW + 1, owner_id=NEW, owner_kind="client", count=0),
        Task(id=10 * NEW + 1, count=0),
    ]
