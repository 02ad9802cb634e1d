"""Classes mapped on tables in unusual ways."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    mapped_column,
    registry,
    relationship,
)

from sa_doclock import document
from tests.integration.mappings.mapped_document import (
    OWNED,
    MappedDocument,
    detail_class,
    header_class,
)
from tests.integration.mappings.under_the_lock import UnderTheLock

METADATA = MetaData()


class Base(DeclarativeBase):
    metadata = METADATA


class DataBase(MappedAsDataclass, DeclarativeBase):
    metadata = METADATA


class DataLine(DataBase):
    __tablename__ = "mp_data_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int]
    order_id: Mapped[int] = mapped_column(ForeignKey("mp_data.id"), init=False)


@document
class DataOrder(DataBase):
    """Two orders are equal if all their attributes are."""

    __tablename__ = "mp_data"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    touched: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[DataLine]] = relationship(cascade=OWNED, default_factory=list)


class _TranslatedBase(DeclarativeBase):
    metadata = MetaData(schema="mp_tenant")


def _translated() -> MappedDocument:
    line = detail_class(_TranslatedBase, "mp_translated_line", "mp_tenant.mp_translated")
    lines = relationship(line, cascade=OWNED)
    header = header_class(_TranslatedBase, "mp_translated", lines=lines)
    return MappedDocument(
        name="schema_translate_map",
        header=document(header),
        line=line,
        schemas={"mp_tenant": None},
    )


def _two_headers() -> MappedDocument:
    """Map two classes on one table: the other session locks and changes through the other class."""
    line = detail_class(Base, "mp_shared_line", "mp_shared")
    header = header_class(Base, "mp_shared", lines=relationship(line, cascade=OWNED))

    class Other(Base):
        __table__ = header.__table__
        lines = relationship(line, cascade=OWNED, overlaps="lines")

    return MappedDocument(name="two classes on one table", header=header, line=line, writer=Other)


def _imperative() -> MappedDocument:
    class Line:
        def __init__(self, **values: Any) -> None:
            for name, value in values.items():
                setattr(self, name, value)

    class Order:
        __init__ = Line.__init__

    orders = Table(
        "mp_imperative",
        METADATA,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("total", Integer),
        Column("touched", Integer),
    )
    lines = Table(
        "mp_imperative_line",
        METADATA,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("order_id", ForeignKey(orders.c.id)),
        Column("value", Integer),
    )
    mappers = registry(metadata=METADATA)
    mappers.map_imperatively(Line, lines)
    mappers.map_imperatively(Order, orders, properties={"lines": relationship(Line, cascade=OWNED)})
    Order.metadata = METADATA
    return MappedDocument(name="imperative", header=document(Order), line=Line)


class TestTables(UnderTheLock):
    mappings = (
        MappedDocument(name="MappedAsDataclass", header=DataOrder, line=DataLine),
        _translated(),
        _two_headers(),
        _imperative(),
    )
