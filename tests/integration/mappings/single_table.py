"""Single-table inheritance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import MetaData, String
from sqlalchemy.orm import DeclarativeBase, mapped_column, relationship

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
from tests.integration.mappings.subclasses import LOADINGS, DocumentOfSubclass, Loading

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


MAPPINGS = [
    mapping
    for position, loading in enumerate(LOADINGS)
    for lazy in ("joined",)
    for mapping in _mapped(loading, position, lazy)
]
