"""Documents with a version of each kind in SQLAlchemy: a number, a UUID, the server's own."""

from __future__ import annotations

import uuid

from sqlalchemy import DDL, FetchedValue, ForeignKey, Integer, String, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import ExecutableDDLElement

from sa_doclock import document

OWNED = "all, delete-orphan"


class Base(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


def key() -> Mapped[int]:
    """A primary key chosen by the test."""
    return mapped_column(primary_key=True, autoincrement=False)


class Header(Base):
    """The columns of each header."""

    __abstract__ = True
    id: Mapped[int] = key()
    total: Mapped[int] = mapped_column(default=0)


@document(version=True)
class Numbered(Header):
    """A version counted by SQLAlchemy."""

    __tablename__ = "vs_numbered"
    version: Mapped[int] = mapped_column()
    lines: Mapped[list[NumberedLine]] = relationship(cascade=OWNED, order_by="NumberedLine.id")

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class NumberedLine(Base):
    __tablename__ = "vs_numbered_line"
    id: Mapped[int] = key()
    header_id: Mapped[int] = mapped_column(ForeignKey("vs_numbered.id"))
    value: Mapped[int]


@document(version=True)
class Marked(Header):
    """A version that is a new UUID each time."""

    __tablename__ = "vs_marked"
    version: Mapped[str] = mapped_column()
    lines: Mapped[list[MarkedLine]] = relationship(cascade=OWNED, order_by="MarkedLine.id")

    __mapper_args__ = {  # noqa: RUF012
        "version_id_col": version,
        "version_id_generator": lambda _: uuid.uuid4().hex,
    }


class MarkedLine(Base):
    __tablename__ = "vs_marked_line"
    id: Mapped[int] = key()
    header_id: Mapped[int] = mapped_column(ForeignKey("vs_marked.id"))
    value: Mapped[int]


@document(version=True)
class Served(Header):
    """A version counted by a trigger on the server."""

    __tablename__ = "vs_served"
    version: Mapped[int] = mapped_column(
        Integer, server_default="1", server_onupdate=FetchedValue()
    )
    lines: Mapped[list[ServedLine]] = relationship(cascade=OWNED, order_by="ServedLine.id")

    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}  # noqa: RUF012


class ServedLine(Base):
    __tablename__ = "vs_served_line"
    id: Mapped[int] = key()
    header_id: Mapped[int] = mapped_column(ForeignKey("vs_served.id"))
    value: Mapped[int]


_BEFORE = (
    "CREATE TRIGGER vs_raise BEFORE UPDATE ON vs_served "
    "FOR EACH ROW SET NEW.version = OLD.version + 1"
)
_AFTER = (
    "CREATE TRIGGER vs_raise AFTER UPDATE OF total ON vs_served BEGIN "
    "UPDATE vs_served SET version = version + 1 WHERE id = NEW.id; END"
)
_FUNCTION = (
    "CREATE OR REPLACE FUNCTION vs_raise() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN NEW.version := OLD.version + 1; RETURN NEW; END $$"
)
_TRIGGER = (
    "CREATE TRIGGER vs_raise BEFORE UPDATE ON vs_served FOR EACH ROW EXECUTE FUNCTION vs_raise()"
)
for dialect, texts in {
    "mysql": [_BEFORE],
    "mariadb": [_BEFORE],
    "sqlite": [_AFTER],
    "postgresql": [_FUNCTION, _TRIGGER],
}.items():
    for text in texts:
        ddl: ExecutableDDLElement = DDL(text)  # type: ignore[no-untyped-call]
        event.listen(Served.__table__, "after_create", ddl.execute_if(dialect=dialect))


@document(version=True)
class Noted(Header):
    """Its remarks share a table with those of other classes."""

    __tablename__ = "vs_noted"
    version: Mapped[int] = mapped_column()
    remarks: Mapped[list[Remark]] = relationship(
        primaryjoin="and_(Noted.id == foreign(Remark.owner_id), Remark.owner_kind == 'noted')",
        cascade=OWNED,
    )

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Remark(Base):
    __tablename__ = "vs_remark"
    id: Mapped[int] = key()
    owner_kind: Mapped[str]
    owner_id: Mapped[int]
    text: Mapped[str] = mapped_column(default="")


class Task(Base):
    """Only its kind makes a row of its table a part."""

    __tablename__ = "vs_task"
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column()
    text: Mapped[str] = mapped_column(default="")
    room_id: Mapped[int | None] = mapped_column(ForeignKey("vs_room.id"))

    __mapper_args__ = {"polymorphic_on": kind, "polymorphic_identity": "task"}  # noqa: RUF012


class Repair(Task):
    """A part of a machine."""

    machine_id: Mapped[int | None] = mapped_column(ForeignKey("vs_machine.id"))

    __mapper_args__ = {"polymorphic_identity": "repair"}  # noqa: RUF012


class Cleaning(Task):
    """A part of a room, whose foreign key every task has."""

    __mapper_args__ = {"polymorphic_identity": "cleaning"}  # noqa: RUF012


@document(version=True)
class Machine(Header):
    __tablename__ = "vs_machine"
    version: Mapped[int] = mapped_column()
    repairs: Mapped[list[Repair]] = relationship(cascade=OWNED)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


@document(version=True)
class Room(Header):
    __tablename__ = "vs_room"
    version: Mapped[int] = mapped_column()
    cleanings: Mapped[list[Cleaning]] = relationship(cascade=OWNED)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


KINDS = [(Numbered, NumberedLine), (Marked, MarkedLine), (Served, ServedLine)]
