"""Declared documents, simple and deep.

Every header has a ``total``, every part a ``value``; ``refill()`` inserts the rows with which each
test begins.
"""

from __future__ import annotations

from sqlalchemy import ForeignKey, ForeignKeyConstraint, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import document

OWNED = "all, delete-orphan"


class Base(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


def key() -> Mapped[int]:
    """A primary key chosen by the test."""
    return mapped_column(primary_key=True, autoincrement=False)


@document
class Order(Base):
    """The simple case: lines, and the taxes of each line."""

    __tablename__ = "dc_order"
    id: Mapped[int] = key()
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade=OWNED, order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "dc_line"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column(ForeignKey("dc_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")
    taxes: Mapped[list[Tax]] = relationship(
        back_populates="line", cascade=OWNED, order_by="Tax.id.desc()"
    )


class Tax(Base):
    __tablename__ = "dc_tax"
    id: Mapped[int] = key()
    line_id: Mapped[int] = mapped_column(ForeignKey("dc_line.id"))
    value: Mapped[int]
    line: Mapped[Line] = relationship(back_populates="taxes")
    rate_id: Mapped[int | None] = mapped_column(ForeignKey("dc_rate.id"))
    rate: Mapped[Rate | None] = relationship()


class Rate(Base):
    """Not a part; taxes refer to it."""

    __tablename__ = "dc_rate"
    id: Mapped[int] = key()
    value: Mapped[int]


@document
class Journal(Base):
    """Composite keys at every level."""

    __tablename__ = "dc_journal"
    year: Mapped[int] = key()
    number: Mapped[int] = key()
    total: Mapped[int]
    entries: Mapped[list[Entry]] = relationship(cascade=OWNED, order_by="Entry.position")


class Entry(Base):
    __tablename__ = "dc_entry"
    # The header's key columns in a different order.
    number: Mapped[int] = key()
    year: Mapped[int] = key()
    position: Mapped[int] = key()
    value: Mapped[int]
    splits: Mapped[list[Split]] = relationship(cascade=OWNED, order_by="Split.id")
    __table_args__ = (
        ForeignKeyConstraint(["year", "number"], ["dc_journal.year", "dc_journal.number"]),
    )


class Split(Base):
    __tablename__ = "dc_split"
    id: Mapped[int] = key()
    year: Mapped[int]
    number: Mapped[int]
    position: Mapped[int]
    value: Mapped[int]
    __table_args__ = (
        ForeignKeyConstraint(
            ["number", "year", "position"],
            ["dc_entry.number", "dc_entry.year", "dc_entry.position"],
        ),
    )


@document(parts=("tasks", "tasks.subtasks", "tasks.notes"))
class Job(Base):
    """Parts that have parts of the same kind."""

    __tablename__ = "dc_job"
    id: Mapped[int] = key()
    total: Mapped[int]
    tasks: Mapped[list[Task]] = relationship(order_by="Task.id")


class Task(Base):
    __tablename__ = "dc_task"
    id: Mapped[int] = key()
    job_id: Mapped[int | None] = mapped_column(ForeignKey("dc_job.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("dc_task.id"))
    value: Mapped[int]
    parent: Mapped[Task | None] = relationship(back_populates="subtasks", remote_side="Task.id")
    subtasks: Mapped[list[Task]] = relationship(back_populates="parent", order_by="Task.id")
    notes: Mapped[list[Note]] = relationship(order_by="Note.id")


class Note(Base):
    __tablename__ = "dc_note"
    id: Mapped[int] = key()
    task_id: Mapped[int] = mapped_column(ForeignKey("dc_task.id"))
    value: Mapped[int]


@document(parts=("steps.substeps.remarks",))
class Plan(Base):
    """The same, declared by the longest path only."""

    __tablename__ = "dc_plan"
    id: Mapped[int] = key()
    total: Mapped[int]
    steps: Mapped[list[Step]] = relationship(order_by="Step.id")


class Step(Base):
    __tablename__ = "dc_step"
    id: Mapped[int] = key()
    plan_id: Mapped[int | None] = mapped_column(ForeignKey("dc_plan.id"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("dc_step.id"))
    substeps: Mapped[list[Step]] = relationship(order_by="Step.id")
    remarks: Mapped[list[Remark]] = relationship(order_by="Remark.id")


class Remark(Base):
    __tablename__ = "dc_remark"
    id: Mapped[int] = key()
    step_id: Mapped[int] = mapped_column(ForeignKey("dc_step.id"))
    value: Mapped[int]


@document(parts=("children", "goods"))
class Category(Base):
    """A tree: every header may be a part of another."""

    __tablename__ = "dc_category"
    id: Mapped[int] = key()
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("dc_category.id"))
    total: Mapped[int]
    children: Mapped[list[Category]] = relationship(back_populates="parent", order_by="Category.id")
    parent: Mapped[Category | None] = relationship(
        back_populates="children", remote_side="Category.id"
    )
    goods: Mapped[list[Good]] = relationship(order_by="Good.id")


class Good(Base):
    __tablename__ = "dc_good"
    id: Mapped[int] = key()
    category_id: Mapped[int] = mapped_column(ForeignKey("dc_category.id"))
    value: Mapped[int]
