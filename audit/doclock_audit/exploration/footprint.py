"""The rows and tables that one statement accesses, from SQLAlchemy's compiled form and its text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import sep
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from sqlalchemy import BindParameter, Column, Table, UniqueConstraint
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList

import sa_doclock
from sa_doclock.testing.instruments import frames, is_of_sqlalchemy
from sa_doclock.testing.scheduling import ANYTHING, Access, Accesses, Mode

_NOT_CODE: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_NAME: Final = r'(?:"[^"]+"|`[^`]+`|\[[A-Za-z_][^\]]*\]|[^\W\d][\w$]*)'
_TOKEN: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*|[(),]")
_BEFORE_TABLE: Final = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "USING", "MERGE"})
_BEFORE_WRITTEN: Final = frozenset({"INTO", "UPDATE", "MERGE"})
_NOT_AT_TARGET: Final = frozenset({"FOR", "KEY", "ON", "DO"})  # as in FOR NO KEY UPDATE
_FILLERS: Final = frozenset({"ONLY", "LATERAL", "TABLE", "("})
_END_OF_LIST: Final = {
    *("WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "EXCEPT", "INTERSECT"),
    *("SET", "VALUES", "SELECT", "FOR", "RETURNING"),
}
_NO_TABLES: Final = _BEFORE_TABLE | _FILLERS | _END_OF_LIST
_FUNCTION: Final = re.compile(r"\w\s*\(")
_LOCK_FUNCTION: Final = re.compile(r"lock\w*\s*\(", re.IGNORECASE)  # as in GET_LOCK()
_HINTS: Final = re.compile(r"\bWITH\s*\([^()]*\)", re.IGNORECASE)
_EXCLUSIVE: Final = re.compile(r"\bFOR\s+(NO\s+KEY\s+)?UPDATE\b|\b(UPD|X)LOCK\b", re.IGNORECASE)
_SHARED: Final = re.compile(
    r"\bFOR\s+(KEY\s+)?SHARE\b|\bLOCK\s+IN\s+SHARE\s+MODE\b|\bHOLDLOCK\b", re.IGNORECASE
)


def modes_of_tables(statement: str, read: Mode) -> list[tuple[str, Mode]]:
    """Return each table that the statement names, once for each mention, with its use.

    Names of functions and CTEs can be among them.  Then more statements conflict than necessary.

    :param read: the mode of a plain read.
    """
    text = _NOT_CODE.sub(" ", statement)
    if _EXCLUSIVE.search(text):
        read = Mode.LOCK
    elif _SHARED.search(text):
        read = Mode.SHARE
    tokens = _TOKEN.findall(_HINTS.sub(" ", text))
    return [(name, Mode.WRITE if written else read) for name, written in _tables(tokens)]


def _tables(tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    place = _Place()
    previous = ""
    for token in tokens:
        word = token.upper()
        if place.expected and word not in _NO_TABLES:
            yield table_name(token), place.written
        place.move(word, previous)
        previous = word


class _Place:
    """A place in a statement.

    :ivar expected: a table comes next.
    :ivar in_list: a comma precedes another table.
    :ivar written: the next table is written.
    """

    expected = in_list = written = False

    def move(self, word: str, previous: str) -> None:
        if word in _BEFORE_TABLE and previous not in _NOT_AT_TARGET:
            self.expected, self.in_list = True, word == "FROM"
            self.written = word in _BEFORE_WRITTEN or previous == "DELETE"
        elif word == "," and self.in_list:
            self.expected, self.written = True, False
        elif word not in _FILLERS:
            self.expected = False
            self.in_list = self.in_list and word not in _END_OF_LIST


def table_name(token: str) -> str:
    """Return the bare name in lower case, without schema and quotes."""
    return token.rpartition(".")[2].strip(' \t\n"`[]').lower()


_LIBRARY: Final = f"{Path(sa_doclock.__file__).parent}{sep}"
_AUDITOR: Final = f"{Path(__file__).parents[1]}{sep}"
_KIT: Final = (_AUDITOR, f"{_LIBRARY}testing{sep}", frames.__code__.co_filename)
_FIRST_WORD: Final = re.compile(r"\s*(\w+)")
_NO_ACCESS: Final = frozenset(
    ["SET", "SHOW", "SAVEPOINT", "RELEASE", "PRAGMA", "BEGIN", "START", "USE", "ROLLBACK"]
)
_QUERIES: Final = frozenset({"SELECT", "WITH", "VALUES"})
_SETS_LEVEL: Final = re.compile(r"(\b|_)ISOLATION\b", re.IGNORECASE)
_LEVEL: Final = re.compile(
    r"\bISOLATION\s+LEVEL\s+(READ\s+\w+|REPEATABLE\s+READ|SERIALIZABLE|SNAPSHOT)", re.IGNORECASE
)
_BEGIN_FOR_WRITES: Final = re.compile(r"\s*BEGIN\s+(IMMEDIATE|EXCLUSIVE)", re.IGNORECASE)
# Keys of other types can be equal in the database but different in Python.
_COMPARABLE: Final = frozenset({int, UUID})


@dataclass(frozen=True)
class Reading:
    """The reads of a transaction: their locks, and the versions that they see.

    :ivar whole_database: every lock covers the whole database, as on SQLite.
    :ivar passes_writers: a plain read neither waits for a writer nor sees it before its commit.
    :ivar one_snapshot: all plain reads might see the moment of the first statement.
    :ivar views: names that stand for other tables.
    """

    whole_database: bool = False
    passes_writers: bool = False
    one_snapshot: bool = True
    views: frozenset[str] = frozenset()

    @property
    def mode(self) -> Mode:
        """The mode of a plain read."""
        return Mode.SNAPSHOT_READ if self.passes_writers else Mode.READ


def level_set_by(statement: str) -> str | None:
    """Return the isolation level that a statement sets; ``""``: it might set an unknown one."""
    if _SETS_LEVEL.search(statement) is None:
        return None
    found = _LEVEL.search(statement)
    return " ".join(found[1].upper().split()) if found else ""


def accesses_of(statement: str, context: Any, reading: Reading) -> Accesses:
    """Return the accesses of a statement about to be sent, as far as the order can matter.

    :param context: SQLAlchemy's execution context.
    """
    if _first_word(statement) in _NO_ACCESS:
        begins = reading.whole_database and _BEGIN_FOR_WRITES.match(statement)
        return frozenset({Access(Mode.WRITE)}) if begins else frozenset()
    if not _is_known(statement, context):
        return ANYTHING
    modes = modes_of_tables(statement, reading.mode)
    if not modes:
        return _without_tables(statement)
    if any(name in reading.views for name, _ in modes):
        return ANYTHING
    if reading.whole_database:
        strongest = max((mode for _, mode in modes), key=lambda mode: mode.value)
        return frozenset({Access(strongest)})
    through_keys = _through_foreign_keys(context)
    return frozenset(_on_rows(modes, context)) | frozenset(through_keys)


def _without_tables(statement: str) -> Accesses:
    """Return the accesses of a query that names no table: a function can do anything.

    Of the library's own queries only named locks affect others; reading the transaction's number, for
    example, does not.
    """
    text = _NOT_CODE.sub(" ", statement)
    if _LOCK_FUNCTION.search(text):
        return ANYTHING
    return ANYTHING if _FUNCTION.search(text) and not _is_sent_by_library() else frozenset()


def _is_sent_by_library() -> bool:
    files = (frame.f_code.co_filename for frame in frames() if not is_of_sqlalchemy(frame))
    return next((file for file in files if not file.startswith(_KIT)), "").startswith(_LIBRARY)


def rows_of(statement: str, context: Any) -> Accesses:
    """Return the rows that a statement names; a new row differs from all others."""
    if _first_word(statement) in _NO_ACCESS or not _is_known(statement, context):
        return frozenset()
    modes = modes_of_tables(statement, Mode.READ)
    if getattr(context, "isinsert", False) and len(modes) == 1:
        return frozenset(Access(mode, name, object()) for name, mode in modes)
    return frozenset(_on_rows(modes, context))


def _is_known(statement: str, context: Any) -> bool:
    return _first_word(statement) in _QUERIES or _written_table(context) is not None


def _written_table(context: Any) -> Table | None:
    found = getattr(getattr(context.compiled, "statement", None), "table", None)
    return found if isinstance(found, Table) else None


def _first_word(statement: str) -> str:
    found = _FIRST_WORD.match(statement.lstrip(" \t\n("))
    return found[1].upper() if found else ""


def _on_rows(modes: Sequence[tuple[str, Mode]], context: Any) -> Iterator[Access]:
    keys = _keys(context) if len(modes) == 1 else ()
    for name, mode in modes:
        if keys:
            yield from (Access(mode, name, key) for key in keys)
        else:
            yield Access(mode, name)


def _through_foreign_keys(context: Any) -> Iterator[Access]:
    """Yield the tables that the server reads or changes to enforce foreign keys."""
    table = _written_table(context)
    if table is None:
        return
    named = _named_columns(context)
    for key in table.foreign_keys:
        if context.isinsert or (context.isupdate and key.parent.key in named):
            yield Access(Mode.SHARE, table_name(key.column.table.name))
    if context.isdelete or (context.isupdate and named & {*table.primary_key.columns.keys()}):
        for other in table.metadata.tables.values():  # whose rows a cascade may delete
            if any(key.references(table) for key in other.foreign_keys):
                yield Access(Mode.WRITE, table_name(other.name))


def _named_columns(context: Any) -> set[str]:
    return {name for values in context.compiled_parameters for name in values}


# The keys of a statement that finds its rows by primary key.


def _keys(context: Any) -> list[tuple[Any, ...]]:
    """Return the primary keys of the only rows that a statement on one table uses, if known."""
    where = getattr(getattr(context.compiled, "statement", None), "whereclause", None)
    values = {} if context.isinsert else dict(equalities(where))
    table = _only_table(values)
    if table is None:
        return []
    unique = {column.key for group in unique_groups(table) for column in group.columns}
    if context.isupdate and _named_columns(context) & unique:
        return []
    names = [context.compiled.bind_names.get(values.get(one)) for one in table.primary_key]
    found = [tuple(map(row.get, names)) for row in context.compiled_parameters]
    types = set(map(type, itertools.chain.from_iterable(found)))
    return found if types <= _COMPARABLE else []


def _only_table(columns: Iterable[Column[Any]]) -> Table | None:
    tables = {column.table for column in columns}
    found = tables.pop() if len(tables) == 1 else None
    return found if isinstance(found, Table) and found.primary_key.columns else None


def equalities(where: Any) -> Iterator[tuple[Column[Any], BindParameter[Any]]]:
    """Yield the columns that must equal a parameter, in criteria joined by AND."""
    if isinstance(where, BooleanClauseList):
        if where.operator is operators.and_:
            for part in where.clauses:
                yield from equalities(part)
    elif isinstance(where, BinaryExpression) and where.operator is operators.eq:
        column, value = where.left, where.right
        if isinstance(column, Column) and isinstance(value, BindParameter):
            # An ORM statement contains a copy of the table's column.
            yield column.table.columns.get(column.key, column), value


def unique_groups(table: Table) -> list[Any]:
    """Return the primary key, the unique constraints and the unique indexes of a table."""
    constraints = [one for one in table.constraints if isinstance(one, UniqueConstraint)]
    return [table.primary_key, *constraints, *(one for one in table.indexes if one.unique)]
