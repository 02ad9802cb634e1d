"""One header for each kind of mapping that changes the text of a lock."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import Column, ForeignKey, ForeignKeyConstraint, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {str: String(40)}


class Customer(Base):
    __tablename__ = "shop_customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Order(Base):
    """A plain header with its lines, and a customer."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("shop_customer.id"))
    total: Mapped[int]
    customer: Mapped[Customer] = relationship()
    lines: Mapped[list[Line]] = relationship(back_populates="order")


class Line(Base):
    __tablename__ = "shop_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("shop_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


class Invoice(Base):
    """Mapped with a JOIN, which a locking statement must not contain."""

    __tablename__ = "shop_invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("shop_customer.id"))
    total: Mapped[int]
    customer: Mapped[Customer] = relationship(lazy="joined", innerjoin=True)


class Voucher(Base):
    """A composite key."""

    __tablename__ = "shop_voucher"
    year: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    entries: Mapped[list[Entry]] = relationship()


class Entry(Base):
    __tablename__ = "shop_voucher_entry"
    __table_args__ = (
        ForeignKeyConstraint(["year", "number"], ["shop_voucher.year", "shop_voucher.number"]),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    year: Mapped[int]
    number: Mapped[int]


class Journal(Base):
    """In a schema, with names that need quotes."""

    __tablename__ = "Journal of Group"
    __table_args__ = {"schema": "books"}  # noqa: RUF012
    id: Mapped[int] = mapped_column("Key", primary_key=True)
    total: Mapped[int] = mapped_column("order")
    name: Mapped[str] = mapped_column("Name")


class Contract(Base):
    """Joined inheritance."""

    __tablename__ = "shop_contract"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "contract"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    total: Mapped[int]


class Lease(Contract):
    __tablename__ = "shop_lease"
    __mapper_args__ = {"polymorphic_identity": "lease"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("shop_contract.id"), primary_key=True)
    rent: Mapped[int]


class Project(Base):
    """Joined inheritance in which every select of the root reads the tables of all classes."""

    __tablename__ = "shop_project"
    __mapper_args__ = {  # noqa: RUF012
        "polymorphic_on": "kind",
        "polymorphic_identity": "project",
        "with_polymorphic": "*",
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    total: Mapped[int]


class Building(Project):
    __tablename__ = "shop_building"
    __mapper_args__ = {"polymorphic_identity": "building"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("shop_project.id"), primary_key=True)
    floors: Mapped[int]


class Ticket(Base):
    """Single-table inheritance."""

    __tablename__ = "shop_ticket"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "ticket"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    total: Mapped[int]


class Fault(Ticket):
    __mapper_args__ = {"polymorphic_identity": "fault"}  # noqa: RUF012
    severity: Mapped[int | None] = mapped_column(unique=True)


class Depot(Base):
    """Concrete inheritance."""

    __tablename__ = "shop_depot"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


class ColdStore(Depot):
    __tablename__ = "shop_cold_store"
    __mapper_args__ = {"concrete": True}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    degrees: Mapped[int]


delivery_label = Table(
    "shop_delivery_label",
    Base.metadata,
    Column("delivery_id", ForeignKey("shop_delivery.id"), primary_key=True),
    Column("label_id", ForeignKey("shop_label.id"), primary_key=True),
)


@document(parts=("boxes", "boxes.items", "labels"))
class Delivery(Base):
    """Parts of every kind: on two levels, and through an association table."""

    __tablename__ = "shop_delivery"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    boxes: Mapped[list[Box]] = relationship(order_by="Box.id")
    labels: Mapped[list[Label]] = relationship(secondary=delivery_label, order_by="Label.id")


class Box(Base):
    __tablename__ = "shop_box"
    id: Mapped[int] = mapped_column(primary_key=True)
    delivery_id: Mapped[int] = mapped_column(ForeignKey("shop_delivery.id"))
    items: Mapped[list[Item]] = relationship(order_by="Item.id")


class Item(Base):
    __tablename__ = "shop_item"
    id: Mapped[int] = mapped_column(primary_key=True)
    box_id: Mapped[int] = mapped_column(ForeignKey("shop_box.id"))
    name: Mapped[str]


class Label(Base):
    __tablename__ = "shop_label"
    id: Mapped[int] = mapped_column(primary_key=True)
