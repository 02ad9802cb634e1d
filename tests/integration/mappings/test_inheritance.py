"""Inheritance: single-table, joined and concrete; the rows of subclasses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import ForeignKey, MetaData, String
from sqlalchemy.ext.declarative import AbstractConcreteBase, ConcreteBase
from sqlalchemy.orm import DeclarativeBase, mapped_column, relationship

from sa_doclock import LockNotSupported, document
from tests.integration.mappings.conftest import Meet
from tests.integration.mappings.mapped_document import (
    OWNED,
    MappedDocument,
    PlainHeader,
    detail_class,
    key,
    mapper_args,
    next_id,
    number,
    total_of,
)
from tests.integration.mappings.under_the_lock import UnderTheLock
from tests.integration.mappings.ways import WAYS, Way

# --------------------------------------------------------------------------------------------------
# Documents with rows of a subclass, and what the subclass adds to the header.


class Loading(NamedTuple):
    """A way to load the subclasses' columns when the superclass is queried."""

    name: str
    of_root: dict[str, Any]
    of_subclass: dict[str, Any]


#: Arguments of both mappers.
LOADINGS = (
    Loading("not at once", {}, {}),
    Loading("inline", {}, {"polymorphic_load": "inline"}),
    Loading("selectin", {}, {"polymorphic_load": "selectin"}),
    Loading("*", {"with_polymorphic": "*"}, {}),
)


class DocumentOfSubclass(MappedDocument):
    """The subclass has ``extra``, the collection ``marks``, and ``marks_total``."""

    def new(self, number: int, values: Any) -> Any:
        header = super().new(number, values)
        header.extra = 0
        mark = type(header).marks.property.mapper.class_
        header.marks.append(mark(id=next_id(), value=0))
        return header

    def touch(self, header: Any) -> None:
        super().touch(header)
        header.extra += 1

    def touch_parts(self, header: Any) -> None:
        header.marks[0].value += 1

    def more(self, header: Any) -> Any:
        return header.extra, [mark.value for mark in header.marks], header.marks_total

    def expected_more(self, plain: PlainHeader) -> Any:
        return plain.touched, [plain.parts_touched], plain.parts_touched


# --------------------------------------------------------------------------------------------------
# Single-table inheritance.

METADATA = MetaData()


def _mapped(loading: Loading, position: int, lazy: Any) -> Iterator[MappedDocument]:
    prefix = f"mp_single_{position}"

    class Base(DeclarativeBase):
        metadata = METADATA

    line, mark = (detail_class(Base, f"{prefix}_{one}", prefix) for one in ("line", "mark"))

    @document
    class Order(Base):
        __tablename__ = prefix
        __mapper_args__ = mapper_args(
            polymorphic_on="kind", polymorphic_identity="order", **loading.of_root
        )
        id = key()
        kind = mapped_column(String(20))
        total = number()
        touched = number()
        lines = relationship(line, cascade=OWNED)

    class Return(Order):
        __mapper_args__ = mapper_args(polymorphic_identity="return", **loading.of_subclass)
        extra = number(nullable=True)
        marks = relationship(mark, cascade=OWNED, lazy=lazy)
        marks_total = total_of(mark.value, mark.header_id == Order.id)

    name = f"single table, {loading.name}, {lazy}"
    yield DocumentOfSubclass(
        name=f"{name}, superclass", header=Order, row=Return, root=Order, line=line
    )
    yield DocumentOfSubclass(name=f"{name}, subclass", header=Return, root=Order, line=line)


MAPPINGS_SINGLE_TABLE = [
    mapping
    for position, loading in enumerate(LOADINGS)
    for lazy in ("joined",)
    for mapping in _mapped(loading, position, lazy)
]


# --------------------------------------------------------------------------------------------------
# Joined inheritance: one header spans the rows of several tables.


def _mapped_joined(loading: Loading, position: int) -> Iterator[MappedDocument]:
    prefix = f"mp_joined_{position}"

    class Base(DeclarativeBase):
        metadata = METADATA

    line = detail_class(Base, f"{prefix}_line", prefix)
    mark = detail_class(Base, f"{prefix}_mark", f"{prefix}_lease")

    @document
    class Contract(Base):
        __tablename__ = prefix
        __mapper_args__ = mapper_args(
            polymorphic_on="kind", polymorphic_identity="contract", **loading.of_root
        )
        id = key()
        kind = mapped_column(String(20))
        total = number()
        touched = number()
        lines = relationship(line, cascade=OWNED)

    class Lease(Contract):
        __tablename__ = f"{prefix}_lease"
        __mapper_args__ = mapper_args(polymorphic_identity="lease", **loading.of_subclass)
        id = key(ForeignKey(f"{prefix}.id"))
        extra = number()
        marks = relationship(mark, cascade=OWNED, lazy="joined")
        marks_total = total_of(mark.value, mark.header_id == id)  # noqa: A003

    name = f"joined inheritance, {loading.name}"
    yield DocumentOfSubclass(
        name=f"{name}, superclass", header=Contract, row=Lease, root=Contract, line=line
    )
    yield DocumentOfSubclass(name=f"{name}, subclass", header=Lease, root=Contract, line=line)


MAPPINGS_JOINED = [
    mapping
    for position, loading in enumerate(LOADINGS)
    for mapping in _mapped_joined(loading, position)
]


# --------------------------------------------------------------------------------------------------
# Concrete inheritance: each class has its own table.
#
# SQLAlchemy refuses ``polymorphic_load`` here.


def _plain() -> Iterator[MappedDocument]:
    """Yield a superclass and a subclass, each read only from its own table."""
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
    """Yield classes whose superclass is read from a UNION."""
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


UNIONS = (
    *_union(ConcreteBase, "ConcreteBase"),
    *_union(AbstractConcreteBase, "AbstractConcreteBase"),
)
# SQLAlchemy reads each class of ConcreteBase, and a superclass, from a subquery: a UNION of the tables.
*READ_FROM_A_UNION, READ_FROM_A_TABLE = UNIONS


class TestInheritance(UnderTheLock):
    mappings = (*MAPPINGS_SINGLE_TABLE, *MAPPINGS_JOINED, *_plain(), READ_FROM_A_TABLE)


@pytest.mark.each_value
@pytest.mark.parametrize("mapping", READ_FROM_A_UNION, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_read_from_a_union_cannot_be_locked(
    meet: Meet, mapping: MappedDocument, way: Way
) -> None:
    with (
        meet(mapping, way, ["the header changes"], pipeline=False) as meeting,
        pytest.raises(LockNotSupported, match="read from a Subquery"),
    ):
        meeting.lock_at_once()
