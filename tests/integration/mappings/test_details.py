"""Collections of details: lists, sets and dicts, ordered, through proxies, or never loaded."""

from __future__ import annotations

from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.ext.associationproxy import association_proxy
from sqlalchemy.ext.orderinglist import ordering_list
from sqlalchemy.orm import (
    DeclarativeBase,
    attribute_keyed_dict,
    object_session,
    relationship,
)

from sa_doclock import document
from tests.integration.mappings.mapped_document import (
    OWNED,
    MappedDocument,
    PlainHeader,
    detail_class,
    header_class,
    next_id,
    number,
)
from tests.integration.mappings.under_the_lock import UnderTheLock

METADATA = MetaData()


class Base(DeclarativeBase):
    metadata = METADATA


class _Set(MappedDocument):
    def put(self, header: Any, line: Any) -> None:
        getattr(header, self.lines).add(line)


class _Dict(MappedDocument):
    """By the detail's id."""

    def members(self, header: Any) -> list[Any]:
        return list(header.lines.values())

    def put(self, header: Any, line: Any) -> None:
        header.lines[line.id] = line

    def take(self, header: Any, line: Any) -> None:
        del header.lines[line.id]


class _Ordered(MappedDocument):
    """``more`` is the positions."""

    def put(self, header: Any, line: Any) -> None:
        line.position = None  # else it keeps its position in another document
        super().put(header, line)

    def more(self, header: Any) -> Any:
        return [line.position for line in header.lines]

    def expected_more(self, plain: PlainHeader) -> Any:
        return list(range(len(plain.lines)))


class _Proxy(MappedDocument):
    """The program sees only values."""

    def values(self, header: Any) -> list[int]:
        return list(header.values)

    def members(self, header: Any) -> list[Any]:
        return list(header.lines)

    def add(self, header: Any, value: int) -> None:
        header.values.append(value)

    def change(self, header: Any, old: int, new: int) -> None:
        header.values[list(header.values).index(old)] = new

    def remove(self, header: Any, value: int) -> None:
        header.values.remove(value)

    def move(self, source: Any, target: Any, value: int) -> None:
        source.values.remove(value)
        target.values.append(value)


class _WriteOnly(_Set):
    def members(self, header: Any) -> list[Any]:
        session = object_session(header)
        return list(session.scalars(header.lines.select())) if session is not None else []


class _Dynamic(MappedDocument):
    def members(self, header: Any) -> list[Any]:
        return list(header.lines.all()) if object_session(header) is not None else []


class _ViewOnly(MappedDocument):
    """``more`` is the details above 15, from a view-only collection."""

    def more(self, header: Any) -> Any:
        return sorted(line.value for line in header.large)

    def expected_more(self, plain: PlainHeader) -> Any:
        return sorted(line.value for line in plain.lines if line.value > 15)


def _document(name: str, mapping: type[MappedDocument] = MappedDocument, **lines: Any) -> Any:
    """Return a document whose collection is mapped with these arguments."""
    table = f"mp_details_{len(METADATA.tables)}"
    line = detail_class(Base, f"{table}_line", table)
    header = header_class(Base, table, lines=relationship(line, cascade=OWNED, **lines))
    return mapping(name=name, header=document(header), line=line)


def _ordered() -> MappedDocument:
    line = detail_class(Base, "mp_ordered_line", "mp_ordered", position=number())
    lines = relationship(
        line,
        cascade=OWNED,
        order_by=line.position,
        collection_class=ordering_list("position"),
    )
    header = header_class(Base, "mp_ordered", lines=lines)
    return _Ordered(name="ordering_list", header=document(header), line=line)


def _proxy() -> MappedDocument:
    line = detail_class(Base, "mp_proxy_line", "mp_proxy")
    values = association_proxy(
        "lines", "value", creator=lambda value: line(id=next_id(), value=value)
    )
    lines = relationship(line, cascade=OWNED)
    header = header_class(Base, "mp_proxy", lines=lines, values=values)
    return _Proxy(name="association proxy", header=document(header), line=line)


def _view_only(*, declared: bool) -> MappedDocument:
    table = f"mp_viewonly_{declared}".lower()
    line = detail_class(Base, f"{table}_line", table)

    def large() -> Any:
        return (line.header_id == header.id) & (line.value > 15)

    header = header_class(
        Base,
        table,
        lines=relationship(line, cascade=OWNED),
        large=relationship(line, primaryjoin=large, viewonly=True),
    )
    name = "viewonly, declared" if declared else "viewonly"
    return _ViewOnly(name=name, header=document(header) if declared else header, line=line)


def _not_declared() -> MappedDocument:
    line = detail_class(Base, "mp_not_declared_line", "mp_not_declared")
    header = header_class(Base, "mp_not_declared", lines=relationship(line, cascade=OWNED))
    return MappedDocument(name="list, not declared", header=header, line=line)


class TestDetails(UnderTheLock):
    mappings = (
        _document("list"),
        _not_declared(),
        _document("set", _Set, collection_class=set),
        _document("dict", _Dict, collection_class=attribute_keyed_dict("id")),
        _ordered(),
        _proxy(),
        _document("write_only", _WriteOnly, lazy="write_only"),
        _document("dynamic", _Dynamic, lazy="dynamic"),
        _view_only(declared=False),
        _view_only(declared=True),
        *(
            _document(f"list, {lazy}", lazy=lazy)
            for lazy in ("joined", "subquery", "selectin", "immediate")
        ),
    )
