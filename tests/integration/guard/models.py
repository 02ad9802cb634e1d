"""Guarded documents, one for each way to map parts, and the classes around them.

Classes with @document are declared; rows.py has their rows.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, ForeignKeyConstraint, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, WriteOnlyMapped, mapped_column, relationship

from sa_doclock import document
from tests.support.refill import Refill

WITH_PARTS = "all, delete-orphan"


class Base(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


def key() -> Mapped[int]:
    """A primary key chosen by the test."""
    return mapped_column(primary_key=True, autoincrement=False)


class Customer(Base):
    """Not declared; its orders have no reference to it."""

    __tablename__ = "gd_customer"
    id: Mapped[int] = key()
    name: Mapped[str]
    orders: Mapped[list[Order]] = relationship(order_by="Order.id")


class Comment(Base):
    """Not declared, and not a part of its order."""

    __tablename__ = "gd_comment"
    id: Mapped[int] = key()
    order_id: Mapped[int | None] = mapped_column(ForeignKey("gd_order.id"))
    text: Mapped[str] = mapped_column(default="")


order_tag = Table(
    "gd_order_tag",
    Base.metadata,
    Column("order_id", ForeignKey("gd_order.id"), primary_key=True),
    Column("tag_id", ForeignKey("gd_tag.id"), primary_key=True),
)


@document(parts=("lines", "lines.taxes", "tags"))
class Order(Base):
    __tablename__ = "gd_order"
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("gd_customer.id"))
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade=WITH_PARTS, order_by="Line.id"
    )
    tags: Mapped[list[Tag]] = relationship(
        secondary=order_tag, back_populates="orders", order_by="Tag.id"
    )
    comments: Mapped[list[Comment]] = relationship(order_by="Comment.id")


class Line(Base):
    """Its foreign key has different names in the database and in Python."""

    __tablename__ = "gd_line"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column("order_no", ForeignKey("gd_order.id"))
    value: Mapped[int] = mapped_column(default=0)
    order: Mapped[Order] = relationship(back_populates="lines")
    taxes: Mapped[list[Tax]] = relationship(
        back_populates="line", cascade=WITH_PARTS, order_by="Tax.id"
    )


class Tax(Base):
    __tablename__ = "gd_tax"
    id: Mapped[int] = key()
    line_id: Mapped[int] = mapped_column(ForeignKey("gd_line.id"))
    rate: Mapped[int] = mapped_column(default=0)
    line: Mapped[Line] = relationship(back_populates="taxes")


class Tag(Base):
    __tablename__ = "gd_tag"
    id: Mapped[int] = key()
    name: Mapped[str]
    orders: Mapped[list[Order]] = relationship(
        secondary=order_tag, back_populates="tags", order_by="Order.id"
    )


class Project(Base):
    """Not declared; deleting it deletes its plans."""

    __tablename__ = "gd_project"
    id: Mapped[int] = key()
    plans: Mapped[list[Plan]] = relationship(cascade=WITH_PARTS, order_by="Plan.id")


@document(parts=("steps", "steps.substeps"))
class Plan(Base):
    """Its steps have steps too, to any depth."""

    __tablename__ = "gd_plan"
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    project_id: Mapped[int | None] = mapped_column(ForeignKey("gd_project.id"))
    steps: Mapped[list[Step]] = relationship(
        back_populates="plan", cascade="all", order_by="Step.id"
    )


class Step(Base):
    __tablename__ = "gd_step"
    id: Mapped[int] = key()
    plan_id: Mapped[int | None] = mapped_column(ForeignKey("gd_plan.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("gd_step.id"))
    value: Mapped[int] = mapped_column(default=0)
    plan: Mapped[Plan | None] = relationship(back_populates="steps")
    parent: Mapped[Step | None] = relationship(back_populates="substeps", remote_side="Step.id")
    substeps: Mapped[list[Step]] = relationship(back_populates="parent", order_by="Step.id")


@document
class Voucher(Base):
    """A composite key; its entries have no reference to it."""

    __tablename__ = "gd_voucher"
    year: Mapped[int] = key()
    number: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    entries: Mapped[list[Entry]] = relationship(cascade=WITH_PARTS, order_by="Entry.id")


class Entry(Base):
    __tablename__ = "gd_entry"
    __table_args__ = (
        ForeignKeyConstraint(["year", "number"], ["gd_voucher.year", "gd_voucher.number"]),
    )
    id: Mapped[int] = key()
    year: Mapped[int]
    number: Mapped[int]
    value: Mapped[int] = mapped_column(default=0)


class Terms(Base):
    """A part that its contract refers to."""

    __tablename__ = "gd_terms"
    id: Mapped[int] = key()
    text: Mapped[str]


@document
class Contract(Base):
    """Joined inheritance, and scalar parts."""

    __tablename__ = "gd_contract"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "contract"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    total: Mapped[int] = mapped_column(default=0)
    terms_id: Mapped[int | None] = mapped_column(ForeignKey("gd_terms.id"))
    terms: Mapped[Terms | None] = relationship(cascade=WITH_PARTS, single_parent=True)
    seal: Mapped[Seal | None] = relationship(cascade=WITH_PARTS)


class Lease(Contract):
    __tablename__ = "gd_lease"
    __mapper_args__ = {"polymorphic_identity": "lease"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("gd_contract.id"), primary_key=True)
    rent: Mapped[int] = mapped_column(default=0)


class Seal(Base):
    """One-to-one."""

    __tablename__ = "gd_seal"
    id: Mapped[int] = key()
    contract_id: Mapped[int] = mapped_column(ForeignKey("gd_contract.id"))
    text: Mapped[str]


class Archive(Base):
    """Not declared; the database deletes its boxes, unless they are loaded."""

    __tablename__ = "gd_archive"
    id: Mapped[int] = key()
    boxes: Mapped[list[Box]] = relationship(cascade="all", passive_deletes=True, order_by="Box.id")


@document(parts=())
class Box(Base):
    __tablename__ = "gd_box"
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    archive_id: Mapped[int | None] = mapped_column(ForeignKey("gd_archive.id", ondelete="CASCADE"))


@document
class Memo(Base):
    """The database generates its keys."""

    __tablename__ = "gd_memo"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    notes: Mapped[list[Note]] = relationship(cascade=WITH_PARTS)


class Note(Base):
    __tablename__ = "gd_note"
    id: Mapped[int] = mapped_column(primary_key=True)
    memo_id: Mapped[int] = mapped_column(ForeignKey("gd_memo.id"))


class Ticket(Base):
    """Not declared, except one of its subclasses."""

    __tablename__ = "gd_ticket"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "ticket"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    total: Mapped[int] = mapped_column(default=0)


@document
class Fault(Ticket):
    __mapper_args__ = {"polymorphic_identity": "fault"}  # noqa: RUF012
    repairs: Mapped[list[Repair]] = relationship(cascade=WITH_PARTS)


class Work(Base):
    """Not declared; its subclasses are parts of two documents."""

    __tablename__ = "gd_work"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "work"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    hours: Mapped[int] = mapped_column(default=0)


class Repair(Work):
    __mapper_args__ = {"polymorphic_identity": "repair"}  # noqa: RUF012
    fault_id: Mapped[int | None] = mapped_column(ForeignKey("gd_ticket.id"))


@document
class Patient(Base):
    __tablename__ = "gd_patient"
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    visits: Mapped[list[Visit]] = relationship(cascade=WITH_PARTS)


class Visit(Work):
    __mapper_args__ = {"polymorphic_identity": "visit"}  # noqa: RUF012
    patient_id: Mapped[int | None] = mapped_column(ForeignKey("gd_patient.id"))


@document
class Shelf(Base):
    """Too large to load."""

    __tablename__ = "gd_shelf"
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)
    books: WriteOnlyMapped[Book] = relationship(cascade=WITH_PARTS, passive_deletes=True)


class Book(Base):
    __tablename__ = "gd_book"
    id: Mapped[int] = key()
    shelf_id: Mapped[int] = mapped_column(ForeignKey("gd_shelf.id", ondelete="CASCADE"))
    pages: Mapped[int] = mapped_column(default=0)


@document
class Budget(Base):
    """Its posts refer to another key than the primary key."""

    __tablename__ = "gd_budget"
    id: Mapped[int] = key()
    code: Mapped[str] = mapped_column(unique=True)
    posts: Mapped[list[Post]] = relationship(cascade=WITH_PARTS)


class Post(Base):
    __tablename__ = "gd_post"
    id: Mapped[int] = key()
    code: Mapped[str] = mapped_column(ForeignKey("gd_budget.code"))
    value: Mapped[int] = mapped_column(default=0)


@document
class Country(Base):
    """A natural key; SQLAlchemy updates it in the rows of its cities."""

    __tablename__ = "gd_country"
    code: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    cities: Mapped[list[City]] = relationship(
        back_populates="country", cascade=WITH_PARTS, passive_updates=False
    )
    rivers: Mapped[list[River]] = relationship(back_populates="country", cascade=WITH_PARTS)


class City(Base):
    __tablename__ = "gd_city"
    id: Mapped[int] = key()
    code: Mapped[str] = mapped_column(ForeignKey("gd_country.code", onupdate="CASCADE"))
    value: Mapped[int] = mapped_column(default=0)
    country: Mapped[Country] = relationship(back_populates="cities")


class River(Base):
    """The database updates its foreign key when the country's key changes."""

    __tablename__ = "gd_river"
    id: Mapped[int] = key()
    code: Mapped[str] = mapped_column(ForeignKey("gd_country.code", onupdate="CASCADE"))
    value: Mapped[int] = mapped_column(default=0)
    country: Mapped[Country] = relationship(back_populates="rivers")


# --------------------------------------------------------------------------------------------------
# The initial rows of each test: documents 1 and 2 of each kind except memos.

_ROWS: dict[str, list[dict[str, Any]]] = {
    "gd_customer": [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Ben"}],
    "gd_order": [
        {"id": 1, "total": 30, "customer_id": 1},
        {"id": 2, "total": 5, "customer_id": 1},
    ],
    "gd_comment": [{"id": 1, "order_id": 1, "text": "late"}],
    "gd_line": [
        {"id": 1, "order_no": 1, "value": 10},
        {"id": 2, "order_no": 1, "value": 20},
        {"id": 3, "order_no": 2, "value": 5},
    ],
    "gd_tax": [{"id": 1, "line_id": 1, "rate": 7}, {"id": 3, "line_id": 3, "rate": 19}],
    "gd_tag": [{"id": 1, "name": "both"}, {"id": 2, "name": "second"}, {"id": 3, "name": "none"}],
    "gd_order_tag": [
        {"order_id": 1, "tag_id": 1},
        {"order_id": 2, "tag_id": 1},
        {"order_id": 2, "tag_id": 2},
    ],
    "gd_project": [{"id": 1}, {"id": 2}],
    "gd_plan": [{"id": 1, "project_id": 1}, {"id": 2, "project_id": 2}],
    "gd_step": [
        {"id": 1, "plan_id": 1, "parent_id": None},
        {"id": 2, "plan_id": 2, "parent_id": None},
        {"id": 11, "plan_id": None, "parent_id": 1},
        {"id": 111, "plan_id": None, "parent_id": 11},
    ],
    "gd_voucher": [{"year": 2024, "number": 1}, {"year": 2024, "number": 2}],
    "gd_entry": [
        {"id": 1, "year": 2024, "number": 1, "value": 30},
        {"id": 2, "year": 2024, "number": 2, "value": 5},
    ],
    "gd_terms": [{"id": 1, "text": "net"}, {"id": 2, "text": "gross"}],
    "gd_contract": [
        {"id": 1, "kind": "lease", "terms_id": 1},
        {"id": 2, "kind": "contract", "terms_id": 2},
    ],
    "gd_lease": [{"id": 1, "rent": 100}],
    "gd_seal": [{"id": 1, "contract_id": 1, "text": "red"}],
    "gd_ticket": [
        {"id": 1, "kind": "fault"},
        {"id": 2, "kind": "fault"},
        {"id": 3, "kind": "ticket"},
    ],
    "gd_patient": [{"id": 1}],
    "gd_work": [
        {"id": 1, "kind": "repair", "fault_id": 1, "patient_id": None},
        {"id": 2, "kind": "repair", "fault_id": 2, "patient_id": None},
        {"id": 3, "kind": "work", "fault_id": None, "patient_id": None},
        {"id": 4, "kind": "visit", "fault_id": None, "patient_id": 1},
    ],
    "gd_shelf": [{"id": 1}, {"id": 2}],
    "gd_book": [{"id": 1, "shelf_id": 1}, {"id": 2, "shelf_id": 2}],
    "gd_budget": [{"id": 1, "code": "a"}, {"id": 2, "code": "b"}],
    "gd_post": [{"id": 1, "code": "a"}, {"id": 2, "code": "b"}],
    "gd_archive": [{"id": 1}, {"id": 2}],
    "gd_country": [{"code": "aa"}, {"code": "bb"}],
    "gd_city": [{"id": 1, "code": "aa"}, {"id": 2, "code": "bb"}],
    "gd_river": [{"id": 1, "code": "aa"}, {"id": 2, "code": "bb"}],
    "gd_box": [{"id": 1, "archive_id": 1}, {"id": 2, "archive_id": 2}],
}


refill = Refill(
    Base.metadata,
    {Base.metadata.tables[name]: rows for name, rows in _ROWS.items()},
    first=[Base.metadata.tables["gd_step"].update().values(parent_id=None)],
)
