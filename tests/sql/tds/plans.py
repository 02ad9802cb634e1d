"""The resources that a SELECT locks, by the rules of "Table hints" about plans.

"The table hints are ignored if the table isn't accessed by the query plan."  "Lock hints ROWLOCK,
UPDLOCK, AND XLOCK that acquire row-level locks may place locks on index keys rather than the actual
data rows."  FORCESEEK: "the query optimizer uses only an index seek operation as the access path";
"If FORCESEEK causes no plan to be found, error 8622 is returned."

Where the optimizer has a choice, the model makes the one that locks least: an index that covers the
statement is preferred to the row, and a table that can be left out of a join is left out.
https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sql.tds.errors import Refused

ROW = "row"  # the key of the clustered index, or the row of a heap


@dataclass(frozen=True)
class Table:
    """A table that has a clustered primary key, if it is no heap."""

    columns: frozenset[str]
    key: tuple[str, ...]
    indexes: Mapping[str, tuple[tuple[str, ...], frozenset[str]]] = field(default_factory=dict)
    """Nonclustered indexes: their own columns, and those that they INCLUDE."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The tables that trusted foreign keys refer to, by their column."""
    small: bool = False
    """A scan of it costs less than a seek."""
    key_is_indexed: bool = True
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of columns; an index is sought only by a value of the same one, as with a SQL_ collation."""


class Locked(NamedTuple):
    """A resource that has got an update lock."""

    table: str
    path: str
    by_scan: bool = False


_SOURCE = re.compile(r"(?:FROM|JOIN) ([\w.]+)(?: AS (\w+))?(?: WITH \(([\w, ]+)\))?")
_EQUAL = re.compile(
    r"\b(\w+)\.(\w+) (?:=|IN) ?\(?(?:CAST\((?:[^()]|\([^()]*\))* AS (\w+)|(@\w+)|(N?'|0x)|[?\d])"
)
_DECLARED = re.compile(r"(@\w+) (\w+)")
_LITERALS = {"'": "varchar", "N'": "nvarchar", "0x": "varbinary"}
_JOIN = re.compile(r"\bON (\w+)\.(\w+) = (\w+)\.(\w+)")


def locked(sql: str, tables: Mapping[str, Table], declared: str = "") -> Iterator[Locked]:
    """Yield what this SELECT locks of the tables that are known.

    :param declared: its parameters, with their types.
    :raises Refused: there is no such plan.
    """
    sources = _SOURCE.findall(sql)
    for name, alias, hints in sources:
        table, words = tables.get(name), set(hints.split(", "))
        if table is None or "UPDLOCK" not in words:
            continue
        read = frozenset(re.findall(rf"\b{alias or name}\.(\w+)", sql))
        if _is_left_out(alias or name, name, read, sql, tables):
            continue
        sought = {
            column
            for source, column, *value in _EQUAL.findall(sql)
            if source == (alias or name) and _is_sought(table.types.get(column), value, declared)
        }
        yield Locked(name, *_access(table, read, sought, force="FORCESEEK" in words))


def _is_sought(wanted: str | None, value: Sequence[str], declared: str) -> bool:
    """Return whether the value is of the column's type, so that it is not the column that is converted."""
    cast, parameter, literal = value
    types = {name: kind.lower() for name, kind in _DECLARED.findall(declared)}
    sent = cast.lower() or types.get(parameter) or _LITERALS.get(literal)
    return wanted is None or sent == wanted


def _is_left_out(
    alias: str, name: str, read: frozenset[str], sql: str, tables: Mapping[str, Table]
) -> bool:
    """Return whether a trusted foreign key says that the table has the row: join elimination."""
    if read - set(tables[name].key):
        return False
    for one, column, other, key in _JOIN.findall(sql):
        for table, by, target in ((one, column, other), (other, key, one)):
            known = tables.get(table)
            if target == alias and known is not None and known.references.get(by) == name:
                return True
    return False


def _access(
    table: Table, read: frozenset[str], sought: set[str], *, force: bool
) -> tuple[str, bool]:
    """Return the index that is locked, and whether all of it is passed."""
    paths = [
        (name, columns, frozenset(columns) | included | set(table.key))
        for name, (columns, included) in table.indexes.items()
    ]
    if table.key_is_indexed:
        paths.append((ROW, table.key, table.columns))
    covering = [(name, columns) for name, columns, has in paths if read <= has]
    seeks = [(name, columns) for name, columns in covering if columns[0] in sought]
    if seeks and (force or not table.small):
        return seeks[0][0], False
    if any(columns[0] in sought for _, columns, _ in paths) and (force or not table.small):
        return ROW, False  # a seek, and the lookup of the row
    if force:
        raise Refused(8622)
    return (covering[0][0] if covering else ROW), True
