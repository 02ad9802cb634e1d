"""Documents of any mapping: how a program makes, reads and changes them, and how others do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ForeignKey, Integer, func, select
from sqlalchemy.orm import MappedColumn, column_property, mapped_column
from sqlalchemy.orm.interfaces import ORMOption

# --------------------------------------------------------------------------------------------------
# A document of some mapping: how a program creates, reads and changes it.

OWNED = "all, delete-orphan"

#: Every detail has a different id, across all tables.
_ids = count(1)


def next_id() -> int:
    return next(_ids)


def mapper_args(**arguments: Any) -> Any:
    return arguments


class State(NamedTuple):
    """The readable state of a document.

    :ivar more: this mapping's additions to the total and the details.
    """

    total: int
    touched: int
    values: list[int]
    more: Any


@dataclass
class PlainLine:
    """A detail without a mapping."""

    value: int


@dataclass
class PlainHeader:
    """A document without a mapping, for the expected state of the others."""

    total: int
    touched: int = 0
    parts_touched: int = 0
    lines: list[PlainLine] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class MappedDocument:
    """A mapping whose header has ``total`` and ``touched``, and whose details have a ``value``.

    :ivar header: the class to query.
    :ivar line: the class of the details.
    :ivar row: the class of the header's row, if ``header`` is a superclass of it.
    :ivar root: the class of the document in ``held_locks``.
    :ivar writer: the class that the other session queries.
    :ivar lines: the header's attribute with the details.
    :ivar identity: returns the primary key for a document's number.
    :ivar options: returns the loader options of every read.
    :ivar schemas: ``schema_translate_map``.
    """

    name: str
    header: Any
    line: Any
    row: Any = None
    root: Any = None
    writer: Any = None
    lines: str = "lines"
    identity: Callable[[int], tuple[Any, ...]] = lambda number: (number,)
    options: Callable[[], Sequence[ORMOption]] = tuple
    schemas: Mapping[str, str | None] | None = None

    def __str__(self) -> str:
        return self.name

    # Keys.

    def ident(self, number: int) -> Any:
        """Return the key as passed to get_entity()."""
        identity = self.identity(number)
        return identity if len(identity) > 1 else identity[0]

    def keys(self) -> list[Any]:
        """Return the primary key's columns, as attributes of the class."""
        mapper = sa.inspect(self.header)
        found = (mapper.get_property_by_column(column).key for column in mapper.primary_key)
        return [getattr(self.header, key) for key in found]

    def where(self, numbers: Iterable[int]) -> sa.ColumnElement[bool]:
        """Return the condition for these documents."""
        keys = self.keys()
        identities = (self.identity(number) for number in numbers)
        return sa.or_(*(sa.and_(*map(sa.ColumnElement.__eq__, keys, one)) for one in identities))

    def held_as(self, number: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the document's key in ``held_locks``."""
        return self.root or self.header, self.identity(number)

    # Changes.

    def new(self, number: int, values: Iterable[int]) -> Any:
        names = [key.key for key in self.keys()]
        key = dict(zip(names, self.identity(number), strict=True))
        header = (self.row or self.header)(**key, total=sum(values), touched=0)
        for value in values:
            self.add(header, value)
        return header

    def new_line(self, value: int) -> Any:
        return self.line(id=next_id(), value=value)

    def members(self, header: Any) -> list[Any]:
        return list(getattr(header, self.lines))

    def put(self, header: Any, line: Any) -> None:
        getattr(header, self.lines).append(line)

    def take(self, header: Any, line: Any) -> None:
        getattr(header, self.lines).remove(line)

    def add(self, header: Any, value: int) -> None:
        self.put(header, self.new_line(value))

    def change(self, header: Any, old: int, new: int) -> None:
        """Change the detail with the old value."""
        self._find(header, old).value = new

    def remove(self, header: Any, value: int) -> None:
        """Remove the detail with this value."""
        self.take(header, self._find(header, value))

    def move(self, source: Any, target: Any, value: int) -> None:
        """Move the detail with this value."""
        line = self._find(source, value)
        self.members(target)  # load now: a flush in between would delete details without a header
        self.take(source, line)
        self.put(target, line)

    def _find(self, header: Any, value: int) -> Any:
        (found,) = (line for line in self.members(header) if line.value == value)
        return found

    def touch(self, header: Any) -> None:
        """Change every column of the header except totals."""
        header.touched += 1

    def touch_parts(self, header: Any) -> None:
        """Change the document's parts that are not details in the total."""

    # Reads.

    def state(self, header: Any) -> State:
        """Return everything readable in a document."""
        return State(header.total, header.touched, sorted(self.values(header)), self.more(header))

    def values(self, header: Any) -> list[int]:
        return [line.value for line in self.members(header)]

    def more(self, header: Any) -> Any:
        """Return this mapping's additions to the total and the details."""
        return None

    def expected_more(self, plain: PlainHeader) -> Any:
        """Return the expected result of :meth:`more`."""
        return None

    def expected(self, plain: PlainHeader) -> State:
        """Return the expected result of :meth:`state`."""
        values = sorted(line.value for line in plain.lines)
        return State(plain.total, plain.touched, values, self.expected_more(plain))


class _Plain(MappedDocument):
    def touch_parts(self, header: PlainHeader) -> None:
        header.parts_touched += 1

    def touch(self, header: PlainHeader) -> None:
        super().touch(header)

    def new(self, number: int, values: Iterable[int]) -> PlainHeader:
        return PlainHeader(sum(values), lines=[PlainLine(value) for value in values])

    def new_line(self, value: int) -> PlainLine:
        return PlainLine(value)


#: The expected state for every mapping, without a database.
PLAIN = _Plain(name="plain", header=PlainHeader, line=PlainLine)


# --------------------------------------------------------------------------------------------------
# Columns and classes that many models share.


def key(*arguments: Any) -> MappedColumn[int]:
    """Return a key column whose values the test chooses."""
    return mapped_column(Integer, *arguments, primary_key=True, autoincrement=False)


def reference(column: str) -> MappedColumn[int]:
    """Return a foreign key column."""
    return mapped_column(ForeignKey(column), nullable=False)


def number(*, nullable: bool = False) -> MappedColumn[int]:
    return mapped_column(Integer, nullable=nullable)


def total_of(value: Any, where: Any, **options: Any) -> Any:
    """Return a column that sums rows of another table."""
    total = select(func.coalesce(func.sum(value), 0)).where(where)
    return column_property(total.scalar_subquery(), **options)


def detail_class(base: Any, table: str, header: str, column: str = "id", **attributes: Any) -> Any:
    """Return a class of details that refer to the header's table by ``header_id``."""
    columns = {"id": key(), "header_id": reference(f"{header}.{column}"), "value": number()}
    return type(table, (base,), {"__tablename__": table, **columns, **attributes})


def header_class(base: Any, table: str, **attributes: Any) -> Any:
    columns = {"id": key(), "total": number(), "touched": number()}
    return type(table, (base,), {"__tablename__": table, **columns, **attributes})


# --------------------------------------------------------------------------------------------------
# The changes that another session makes during a lock wait, and the change under the lock.

#: The details of the document with the waiter, and of another document.
FIRST, SECOND = (10, 20, 40), (100, 200)

Change = Callable[[MappedDocument, Any, Any], None]
"""Is given how the documents are mapped, and both headers."""


def change_header(mapping: MappedDocument, first: Any, _second: Any) -> None:
    mapping.touch(first)


def add_detail(mapping: MappedDocument, first: Any, _second: Any) -> None:
    mapping.add(first, 5)
    first.total += 5


def change_details(mapping: MappedDocument, first: Any, _second: Any) -> None:
    """Change only details: the header's row stays unchanged."""
    mapping.change(first, 10, 13)
    mapping.change(first, 20, 17)
    mapping.touch_parts(first)


def remove_detail(mapping: MappedDocument, first: Any, _second: Any) -> None:
    mapping.remove(first, 20)
    first.total -= 20


def move_away(mapping: MappedDocument, first: Any, second: Any) -> None:
    mapping.move(first, second, 40)
    first.total -= 40
    second.total += 40


def move_here(mapping: MappedDocument, first: Any, second: Any) -> None:
    mapping.move(second, first, 100)
    second.total -= 100
    first.total += 100


CHANGES: Mapping[str, Change] = {
    "the header changes": change_header,
    "a detail is added": add_detail,
    "details change": change_details,
    "a detail is removed": remove_detail,
    "a detail moves away": move_away,
    "a detail moves here": move_here,
}


def write_own(mapping: MappedDocument, header: Any) -> None:
    """Change the document under the lock."""
    mapping.add(header, 1)
    header.total += 1
    mapping.touch(header)
