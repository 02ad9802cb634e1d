"""Attributes of the header beyond a plain column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Integer, MetaData, func, select
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    DeclarativeBase,
    column_property,
    composite,
    mapped_column,
    query_expression,
    relationship,
    synonym,
    undefer,
    with_expression,
)

from sa_doclock import document
from tests.integration.mappings.mapped_document import (
    OWNED,
    MappedDocument,
    PlainHeader,
    detail_class,
    header_class,
    key,
    mapper_args,
    number,
    total_of,
)
from tests.integration.mappings.under_the_lock import UnderTheLock

METADATA = MetaData()


class Base(DeclarativeBase):
    metadata = METADATA


class _Total(MappedDocument):
    """``more`` is the sum of the details."""

    def more(self, header: Any) -> Any:
        return header.more

    def expected_more(self, plain: PlainHeader) -> Any:
        return sum(line.value for line in plain.lines)


class _Twice(_Total):
    """``more`` is twice ``touched``."""

    def expected_more(self, plain: PlainHeader) -> Any:
        return 2 * plain.touched


class _Own(_Total):
    """``more`` changes whenever the header does."""

    def new(self, number: int, values: Any) -> Any:
        header = super().new(number, values)
        header.more = 0
        return header

    def touch(self, header: Any) -> None:
        super().touch(header)
        header.more += 1

    def expected_more(self, plain: PlainHeader) -> Any:
        return plain.touched


class _Pair(_Total):
    """``more`` is an object of two columns."""

    def expected_more(self, plain: PlainHeader) -> Any:
        return plain.total, plain.touched


def _classes(name: str, **attributes: Any) -> tuple[Any, Any]:
    """Return a header with these attributes, and its details."""
    line = detail_class(Base, f"mp_{name}_line", f"mp_{name}")
    lines = relationship(line, cascade=OWNED)
    return header_class(Base, f"mp_{name}", lines=lines, **attributes), line


def _subqueries() -> Iterator[MappedDocument]:
    header, line = _classes("subquery")
    header.more = total_of(line.value, line.header_id == header.id)
    name = "column_property, subquery"
    yield _Total(name=name, header=document(header), line=line)

    header, line = _classes("deferred_subquery")
    header.more = total_of(line.value, line.header_id == header.id, deferred=True)
    yield _Total(name=f"{name}, deferred, not declared", header=header, line=line)
    yield _Total(
        name=f"{name}, undeferred, not declared",
        header=header,
        line=line,
        options=lambda: [undefer(header.more)],
    )


def _own_columns() -> Iterator[MappedDocument]:
    header, line = _classes("expression")
    header.more = column_property(header.touched * 2)
    yield _Twice(name="column_property, own columns", header=document(header), line=line)

    more = hybrid_property(lambda self: self.touched * 2)
    header, line = _classes("hybrid", more=more)
    yield _Twice(name="hybrid", header=document(header), line=line)

    header, line = _classes("composite")
    header.more = composite(lambda *pair: pair, header.total, header.touched)
    yield _Pair(name="composite()", header=document(header), line=line)


def _deferred() -> Iterator[MappedDocument]:
    header, line = _classes("deferred", more=mapped_column(Integer, deferred=True))
    document(header)
    yield _Own(name="deferred", header=header, line=line)
    options = [undefer(header.more)]
    yield _Own(name="undeferred", header=header, line=line, options=lambda: options)


def _query_expression() -> MappedDocument:
    header, line = _classes("query_expression", more=query_expression())
    lines = select(func.coalesce(func.sum(line.value), 0)).where(line.header_id == header.id)
    return _Total(
        name="query_expression",
        header=document(header),
        line=line,
        options=lambda: [with_expression(header.more, lines.scalar_subquery())],
    )


def _version() -> MappedDocument:
    version = number()
    arguments = mapper_args(version_id_col=version)
    header, line = _classes("version", version=version, __mapper_args__=arguments)
    return MappedDocument(name="version_id_col", header=document(header), line=line)


@document
class WithSynonym(Base):
    """Attributes named differently than their columns."""

    __tablename__ = "mp_synonym"
    number = key()
    id = synonym("number")
    _total = mapped_column("sum", Integer)
    total = synonym("_total")
    touched = mapped_column("changes", Integer)
    lines = relationship(
        detail_class(Base, "mp_synonym_line", "mp_synonym", "number"), cascade=OWNED
    )


class TestAttributes(UnderTheLock):
    mappings = (
        *_subqueries(),
        *_own_columns(),
        *_deferred(),
        _query_expression(),
        _version(),
        MappedDocument(
            name="synonym", header=WithSynonym, line=WithSynonym.lines.property.mapper.class_
        ),
    )
