"""Facts of a statement that is sent: the lock that it asks for, and the one that its text has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Column,
    Insert,
    Select,
    Table,
    TextClause,
    Update,
    UpdateBase,
)
from sqlalchemy.sql.expression import CompoundSelect
from sqlalchemy.sql.visitors import iterate

from ...core.sqlalchemy_internals import for_update_clause, written_out
from ...features.guard.dml_internals import values_of
from ..exploration.footprint import equalities

#: The row locks of all databases, in the text of a SELECT.
_ROW_LOCK: Final = re.compile(
    r"\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b|\bFOR\s+(?:KEY\s+)?SHARE\b|\bIN\s+SHARE\s+MODE\b"
    r"|\bWITH\s*\([^)]*\b(?:UPDLOCK|XLOCK|TABLOCKX|HOLDLOCK)\b",
    re.IGNORECASE,
)
#: Locks of a name, or of whole tables: others queue there before they lock any row.
_WIDE_LOCK: Final = re.compile(
    r"\bpg_(?:try_)?advisory_(?:xact_)?lock|\bGET_LOCK\s*\(|\bsp_getapplock\b|^\s*LOCK\s+TABLES?\b",
    re.IGNORECASE,
)
#: The write lock of an SQLite file, in which there are no row locks.
_FILE_LOCK: Final = re.compile(r"^\s*BEGIN\s+(?:IMMEDIATE|EXCLUSIVE)\b", re.IGNORECASE)
#: A transaction of SQLite that begins before its first read: a write after another's commit is an error.
_BEGIN: Final = re.compile(r"^\s*BEGIN\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sent:
    """Facts of a statement: from its text, and from the construct that it was compiled from."""

    asks: bool = False  # with_for_update() stands somewhere in it
    locks: bool = False  # a row lock stands in the text
    locks_widely: bool = False  # a name, or whole tables
    locks_file: bool = False
    begins: bool = False  # by its text; drivers begin without
    is_select: bool = False
    tables: frozenset[str] = frozenset()
    update: UpdateSent | None = None
    is_insert: bool = False
    writes: bool = False


@dataclass(frozen=True, slots=True)
class UpdateSent:
    """An UPDATE of one table."""

    table: Table
    values: Mapping[str, Any]  # by column; those that are computed by the database are left out
    conditions: frozenset[str]  # columns of the WHERE that are not in the primary key
    key: tuple[BindParameter[Any], ...] | None  # that the whole primary key is equal to


# Threads: the audit's listeners run in one thread at a time; the caches are safe by themselves.
_known: WeakKeyDictionary[Any, Sent] = WeakKeyDictionary()  # by the compiled statement


def facts_of(text: str, context: Any) -> Sent:
    """Return the facts of this statement; they are found once for each compiled statement."""
    compiled = getattr(context, "compiled", None)
    if compiled is None:
        return _facts_of_text(text)
    found = _known.get(compiled)
    if found is None:
        found = _known[compiled] = _facts_of_compiled(text, compiled)
    return found


@lru_cache(maxsize=1024)
def _facts_of_text(text: str) -> Sent:
    locks = _ROW_LOCK.search(text) is not None
    return Sent(
        asks=locks,
        locks=locks,
        locks_widely=_WIDE_LOCK.search(text) is not None,
        locks_file=_FILE_LOCK.search(text) is not None,
        begins=_BEGIN.search(text) is not None,
    )


def _facts_of_compiled(text: str, compiled: Any) -> Sent:
    statement = written_out(compiled.statement)
    of_text = _facts_of_text(text)
    if not isinstance(statement, ClauseElement):
        return of_text
    elements = list(iterate(statement))
    return replace(
        of_text,
        asks=of_text.locks or any(map(asks_for_lock, elements)),
        is_select=isinstance(statement, (Select, CompoundSelect)),
        tables=frozenset(_tables(elements)),
        update=_update(statement) if isinstance(statement, Update) else None,
        is_insert=isinstance(statement, Insert),
        writes=isinstance(statement, UpdateBase),
    )


def _tables(elements: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the tables that stand in a statement, or whose columns do."""
    for element in elements:
        table = element.table if isinstance(element, Column) else element
        if isinstance(table, Table):
            yield str(table.key)


def asks_for_lock(element: Any) -> bool:
    """Return whether this part of a statement asks for row locks."""
    if isinstance(element, (Select, CompoundSelect)):
        return for_update_clause(element) is not None
    return isinstance(element, TextClause) and _ROW_LOCK.search(element.text) is not None


def _update(statement: Update) -> UpdateSent | None:
    table: Any = statement.table
    if not isinstance(table, Table):
        return None
    equal = {one.key: value for one, value in equalities(statement.whereclause)}
    keys = [column.key for column in table.primary_key]
    whole = bool(keys) and equal.keys() >= {*keys}
    others = {one.key for one in _columns(statement.whereclause)} - {*keys}
    key = tuple(equal[name] for name in keys) if whole else None
    return UpdateSent(table, dict(_values(statement)), frozenset(others), key)


def _columns(where: Any) -> Iterator[Column[Any]]:
    """Yield the columns that stand in a WHERE, where there is one."""
    for element in () if where is None else iterate(where):
        if isinstance(element, Column):
            yield element


def _values(statement: Update) -> Iterator[tuple[str, Any]]:
    """Yield the columns that have a value from the program, by name."""
    for row in values_of(statement).rows:
        for column, value in row.items():
            is_expression = isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")
            if isinstance(value, BindParameter) or not is_expression:
                yield str(getattr(column, "key", column)), value


def key_of(update: UpdateSent, context: Any) -> tuple[Any, ...] | None:
    """Return the primary key of the only row that this UPDATE is for; None where it names none."""
    if update.key is None or len(context.compiled_parameters) != 1:
        return None
    (values,) = context.compiled_parameters
    names = [context.compiled.bind_names.get(parameter) for parameter in update.key]
    if not all(name in values for name in names):
        return None
    return tuple(values[name] for name in names)


def conditions_of(statement: Any) -> frozenset[str]:
    """Return the columns that a SELECT has conditions on, less those that identify or refer to a row."""
    return frozenset(
        one.key
        for one in _columns(getattr(statement, "whereclause", None))
        if not (one.primary_key or one.unique or one.foreign_keys)
    )
