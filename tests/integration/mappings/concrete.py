"""Concrete inheritance: every class has a table of its own.

``polymorphic_load`` does not exist here: SQLAlchemy refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.ext.declarative import AbstractConcreteBase, ConcreteBase
from sqlalchemy.orm import DeclarativeBase, relationship

from sa_doclock import document
from tests.integration.mappings.mapped_document import (
    OWNED,
    MappedDocument,
    detail_class,
    key,
    mapper_args,
    number,
    total_of,
)
from tests.integration.mappings.subclasses import DocumentOfSubclass

METADATA = MetaData()


def _plain() -> Iterator[MappedDocument]:
    """Yield a superclass and a subclass, each read from its own table alone."""
    prefix = "mp_concrete"

    class Base(DeclarativeBase):
        metadata = METADATA

    own = [detail_class(Base, f"{prefix}_{one}", prefix) for one in ("line", "mark")]
    table = f"{prefix}_store"
    below = [detail_class(Base, f"{table}_{one}", table) for one in ("line", "mark")]

    @document
    class Building(Base):
        __tablename__ = prefix
        id = key()
        total = number()
        touched = number()
        extra = number()
        lines = relationship(own[0], cascade=OWNED)
        marks = relationship(own[1], cascade=OWNED, lazy="joined")
        marks_total = total_of(own[1].value, own[1].header_id == id)  # noqa: A003

    @document
    class Store(Building):
        __tablename__ = f"{prefix}_store"
        __mapper_args__ = mapper_args(concrete=True)
        id = key()
        total = number()
        touched = number()
        extra = number()
        lines = relationship(below[0], cascade=OWNED)
        marks = relationship(below[1], cascade=OWNED, lazy="joined")
        marks_total = total_of(below[1].value, below[1].header_id == id)  # noqa: A003

    yield DocumentOfSubclass(name="concrete, superclass", header=Building, line=own[0])
    yield DocumentOfSubclass(name="concrete, subclass", header=Store, line=below[0])


def _union(concrete_base: Any, name: str) -> Iterator[MappedDocument]:
    """Yield classes of which the superclass is read from a UNION."""
    prefix = f"mp_{name}"

    class Base(DeclarativeBase):
        metadata = METADATA

    line, mark = (
        detail_class(Base, f"{prefix}_{one}", f"{prefix}_store") for one in ("line", "mark")
    )
    abstract = concrete_base is AbstractConcreteBase

    class Building(concrete_base, Base):  # type: ignore[misc]
        if not abstract:
            __tablename__ = prefix
            __mapper_args__ = mapper_args(polymorphic_identity="building", concrete=True)
            id = key()
            total = number()
            touched = number()

    class Store(Building):
        __tablename__ = f"{prefix}_store"
        __mapper_args__ = mapper_args(polymorphic_identity="store", concrete=True)
        id = key()
        total = number()
        touched = number()
        extra = number()
        lines = relationship(line, cascade=OWNED)
        marks = relationship(mark, cascade=OWNED, lazy="joined")
        marks_total = total_of(mark.value, mark.header_id == id)  # noqa: A003

    Base.registry.configure()
    yield DocumentOfSubclass(
        name=f"{name}, superclass", header=Building, row=Store, line=line, writer=Store
    )
    yield DocumentOfSubclass(name=f"{name}, subclass", header=Store, line=line)


MAPPINGS = [
    *_plain(),
    *_union(ConcreteBase, "ConcreteBase"),
    *_union(AbstractConcreteBase, "AbstractConcreteBase"),
]
