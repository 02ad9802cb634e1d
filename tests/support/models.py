"""The documents that the tests lock: one for each mapping of a header and its details.

Every header has a ``total``, every detail a ``value``. ``refill()`` makes the rows that each test
starts with: documents 1 and 2 of each kind, with totals that are the sums of their values.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from tests.support.refill import Refill


class Base(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


def key() -> Mapped[int]:
    """Make a primary key that the tests choose."""
    return mapped_column(primary_key=True, autoincrement=False)


class Customer(Base):
    """Not a document, but documents refer to it."""

    __tablename__ = "lk_customer"
    id: Mapped[int] = key()
    name: Mapped[str]


class Order(Base):
    """The plain case, with a composition: an order owns its lines."""

    __tablename__ = "lk_order"
    id: Mapped[int] = key()
    total: Mapped[int]
    remark: Mapped[str] = mapped_column(default="", deferred=True)
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "lk_line"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column(ForeignKey("lk_order.id"))
    name: Mapped[str]
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


class Voucher(Base):
    """A composite key."""

    __tablename__ = "lk_voucher"
    year: Mapped[int] = key()
    number: Mapped[int] = key()
    total: Mapped[int]
    entries: Mapped[list[Entry]] = relationship(cascade="all, delete-orphan", order_by="Entry.id")


class Entry(Base):
    __tablename__ = "lk_entry"
    __table_args__ = (
        ForeignKeyConstraint(["year", "number"], ["lk_voucher.year", "lk_voucher.number"]),
    )
    id: Mapped[int] = key()
    year: Mapped[int]
    number: Mapped[int]
    value: Mapped[int]


class Contract(Base):
    """Joined inheritance: a lease is a row in each of two tables."""

    __tablename__ = "lk_contract"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "contract"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    total: Mapped[int]
    clauses: Mapped[list[Clause]] = relationship(cascade="all, delete-orphan", order_by="Clause.id")


class Lease(Contract):
    __tablename__ = "lk_lease"
    __mapper_args__ = {"polymorphic_identity": "lease"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("lk_contract.id"), primary_key=True)
    rent: Mapped[int]


class Clause(Base):
    __tablename__ = "lk_clause"
    id: Mapped[int] = key()
    contract_id: Mapped[int] = mapped_column(ForeignKey("lk_contract.id"))
    value: Mapped[int]


class Ticket(Base):
    """Single-table inheritance."""

    __tablename__ = "lk_ticket"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "ticket"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    total: Mapped[int]


class Fault(Ticket):
    __mapper_args__ = {"polymorphic_identity": "fault"}  # noqa: RUF012
    severity: Mapped[int | None]


class Depot(Base):
    """Concrete inheritance: a cold store has no row in the table of depots."""

    __tablename__ = "lk_depot"
    id: Mapped[int] = key()
    total: Mapped[int]


class ColdStore(Depot):
    __tablename__ = "lk_cold_store"
    __mapper_args__ = {"concrete": True}  # noqa: RUF012
    id: Mapped[int] = key()
    total: Mapped[int]
    degrees: Mapped[int]


class Account(Base):
    """A header with a version column, which the ORM checks and increments."""

    __tablename__ = "lk_account"
    id: Mapped[int] = key()
    version: Mapped[int] = mapped_column()
    total: Mapped[int]
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Invoice(Base):
    """A header that loads other objects too: one by a JOIN in the same SELECT, one by a second SELECT."""

    __tablename__ = "lk_invoice"
    id: Mapped[int] = key()
    total: Mapped[int]
    customer_id: Mapped[int] = mapped_column(ForeignKey("lk_customer.id"))
    seller_id: Mapped[int] = mapped_column(ForeignKey("lk_customer.id"))
    customer: Mapped[Customer] = relationship(
        foreign_keys=[customer_id], lazy="joined", innerjoin=True
    )
    seller: Mapped[Customer] = relationship(
        foreign_keys=[seller_id],
        lazy="selectin",
        cascade="save-update, merge, refresh-expire",  # an expire() of the invoice reaches it
    )


_ROWS: dict[type[Base], list[dict[str, Any]]] = {
    Customer: [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Ben"}],
    Order: [{"id": 1, "total": 30, "remark": "first"}, {"id": 2, "total": 5, "remark": "second"}],
    Line: [
        {"id": 1, "order_id": 1, "name": "a", "value": 10},
        {"id": 2, "order_id": 1, "name": "b", "value": 20},
        {"id": 3, "order_id": 2, "name": "c", "value": 5},
    ],
    Voucher: [{"year": 2024, "number": 1, "total": 30}, {"year": 2024, "number": 2, "total": 5}],
    Entry: [
        {"id": 1, "year": 2024, "number": 1, "value": 30},
        {"id": 2, "year": 2024, "number": 2, "value": 5},
    ],
    Contract: [
        {"id": 1, "kind": "lease", "total": 30},
        {"id": 2, "kind": "contract", "total": 5},
    ],
    Lease: [{"id": 1, "rent": 100}],
    Clause: [{"id": 1, "contract_id": 1, "value": 30}, {"id": 2, "contract_id": 2, "value": 5}],
    Ticket: [
        {"id": 1, "kind": "fault", "total": 30, "severity": 3},
        {"id": 2, "kind": "ticket", "total": 5, "severity": None},
    ],
    Depot: [{"id": 1, "total": 3}, {"id": 2, "total": 4}],
    ColdStore: [{"id": 1, "total": 30, "degrees": -18}, {"id": 2, "total": 5, "degrees": 4}],
    Account: [{"id": 1, "version": 1, "total": 30}, {"id": 2, "version": 1, "total": 5}],
    Invoice: [
        {"id": 1, "total": 30, "customer_id": 1, "seller_id": 2},
        {"id": 2, "total": 5, "customer_id": 1, "seller_id": 2},
    ],
}


refill = Refill(
    Base.metadata,
    {Base.metadata.tables[entity.__tablename__]: rows for entity, rows in _ROWS.items()},
)
