"""Joined inheritance: a row of the header is made of several rows."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import ForeignKey, MetaData, String
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


def _mapped(loading: Loading, position: int) -> Iterator[MappedDocument]:
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


MAPPINGS = [
    mapping for position, loading in enumerate(LOADINGS) for mapping in _mapped(loading, position)
]
