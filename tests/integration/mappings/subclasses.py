"""Documents whose rows are of a subclass: what the subclass adds to the header."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.integration.mappings.mapped_document import MappedDocument, PlainHeader, next_id


class Loading(NamedTuple):
    """A way to load the columns of the subclasses when the superclass is asked for."""

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
