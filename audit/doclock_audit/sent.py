"""Facts about a sent statement: the lock it requests, and the rows it reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary, ref

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Column,
    Delete,
    Insert,
    Select,
    Table,
    TextClause,
    Update,
    UpdateBase,
)
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, Grouping
from sqlalchemy.sql.expression import CompoundSelect
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import iterate

from sa_doclock.testing.instruments import (
    all_mappers,
    conflict_of,
    for_update_clause,
    for_update_tables,
    has_limit,
    values_of,
    written_out,
)
from sa_doclock.testing.scheduling import Mode

from .exploration.footprint import level_set_by, modes_of_tables, table_name
from .rows import ByObject

#: The row locks of all databases, in the text of a SELECT.
_ROW_LOCK: Final = re.compile(
    r"\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b|\bFOR\s+(?:KEY\s+)?SHARE\b|\bIN\s+SHARE\s+MODE\b"
    r"|\bWITH\s*\([^)]*\b(?:UPDLOCK|XLOCK|TABLOCKX|HOLDLOCK)\b",
    re.IGNORECASE,
)
#: Locks on a name, or on whole tables: others queue there before they lock any row.
_WIDE_LOCK: Final = re.compile(
    r"\bpg_(?:try_)?advisory_(?:xact_)?lock|\bGET_LOCK\s*\(|\bsp_getapplock\b|^\s*LOCK\s+TABLES?\b",
    re.IGNORECASE,
)
#: The write lock of an SQLite file, which has no row locks.
_FILE_LOCK: Final = re.compile(r"^\s*BEGIN\s+(?:IMMEDIATE|EXCLUSIVE)\b", re.IGNORECASE)
#: A transaction of SQLite that begins before its first read: a later write may be an error.
_BEGIN: Final = re.compile(r"^\s*BEGIN\b", re.IGNORECASE)
_END: Final = re.compile(
    r"^\s*(?:COMMIT|END|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO))\b", re.IGNORECASE
)
_SETTING: Final = re.compile(r"^\s*(?:SET|BEGIN|START)\b", re.IGNORECASE)
_QUERY: Final = re.compile(r"^[\s(]*(?:SELECT|WITH)\b", re.IGNORECASE)
_INSERT: Final = re.compile(r"^\s*INSERT\b", re.IGNORECASE)
_UPDATE: Final = re.compile(
    r"^\s*UPDATE\s+(?P<table>[\w.\"`\[\]]+)\s+(?:(?:AS\s+)?(?!SET\b)\w+\s+)?SET\s+(?P<sets>.*?)"
    r"(?:\s+WHERE\s+(?P<where>.*?))?(?:\s+RETURNING\s.*)?;?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_SELECT: Final = re.compile(
    r"^\s*SELECT\s+(?P<columns>.*?)\s+FROM\s+(?P<table>[\w.\"`\[\]]+)"
    r"(?:\s+(?:AS\s+)?(?!(?:WHERE|ORDER|LIMIT)\b)\w+)?(?:\s+WHERE\s+(?P<where>.*?))?"
    r"(?P<rest>(?:\s+(?:ORDER|LIMIT)\b.*)?);?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_AGGREGATE: Final = re.compile(r"\b(?:count|max|sum)\s*\(", re.IGNORECASE)
_VALUES: Final = re.compile(
    r"^\s*(?P<verb>INSERT(?:\s+OR\s+REPLACE)?|REPLACE)\s+INTO\s+(?P<table>[\w.\"`\[\]]+)\s*"
    r"\((?P<columns>[^()]*)\)\s*VALUES\s*\((?P<values>[^()]*)\)\s*"
    r"(?:ON\s+(?:CONFLICT\b.*?\bDO\s+UPDATE\s+SET|DUPLICATE\s+KEY\s+UPDATE)\s+(?P<sets>.*?))?"
    r"(?:ON\s+CONFLICT\b.*?\bDO\s+NOTHING)?(?:\s*RETURNING\s.*)?;?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_WITH_SELECT: Final = re.compile(
    r"^\s*INSERT\s+INTO\s+(?P<table>[\w.\"`\[\]]+)\s*\((?P<columns>[^()]*)\)"
    r"(?P<body>.*?\b(?:VALUES\s*\(|SELECT\b)(?P<values>.*\b(?:SELECT|FROM)\b.*))$",
    re.IGNORECASE | re.DOTALL,
)
_WORD: Final = re.compile(r"[(),]|\w+|[^(),\w]+")
_NEXT: Final = re.compile(r"\bcount\s*\(|\bmax\s*\(.*\+", re.IGNORECASE | re.DOTALL)
_OF_NEW_ROW: Final = re.compile(r"^(?:excluded\.|VALUES\s*\()\s*([\w\"`]+)\s*\)?$", re.IGNORECASE)
_SAVEPOINT: Final = re.compile(
    r"^\s*(?P<verb>SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?"
    r"|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?\s+TO(?:\s+SAVEPOINT)?)\s+(?P<name>[\w\"`]+)",
    re.IGNORECASE,
)
#: The values in a text: parameters in the styles of all drivers, literals, numbers and similar.
_VALUE: Final = re.compile(
    r"(?P<text>'(?:[^']|'')*')|(?P<other>\"[^\"]*\"|`[^`]*`|%%|::\w+)|%\((?P<name>\w+)\)s|(?P<position>%s|\?)"
    r"|[$:](?P<number>\d+)\b|(?P<named>:\w+)|(?<![\w.])(?P<digits>-?\d+(?:\.\d+)?)\b"
)
_EQUAL: Final = re.compile(r"^\(*\s*([\w.\"`\[\]]+)\s*=\s*:(\w+)\s*\)*$")


class Value(NamedTuple):
    """A column that the program sets, and the names of the parameters that may hold its value."""

    column: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class WriteSent:
    """An UPDATE, or the UPDATE that an INSERT turns into for an existing row.

    :ivar values: values from the program; values that the database computes are left out.
    :ivar conditions: columns of the WHERE outside the primary key.
    :ivar key: the names of the parameters that equal the whole primary key.
    """

    table: Table
    values: tuple[Value, ...]
    conditions: frozenset[str]
    key: tuple[str, ...] | None
    from_parameters: bool = False  # it may set columns that only the parameters name


@dataclass(frozen=True, slots=True)
class Condition:
    """The rows of a table that a SELECT reads or locks.

    :ivar name: of the table, as it may appear in the text.
    :ivar equal: columns that must equal a parameter, with the parameter's name.
    :ivar exact: no other condition exists, except ``within``.
    :ivar within: columns that must be in a list of values.
    """

    table: Table
    name: str
    equal: tuple[tuple[str, str], ...] = ()
    exact: bool = True
    within: frozenset[str] = frozenset()

    def key(self) -> tuple[str, ...] | None:
        """Return the parameters that equal the whole primary key."""
        return _key_of(self.table, dict(self.equal))

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values of these columns; None if a parameter is missing."""
        if not all(name in parameters for _, name in self.equal):
            return None
        return {column: parameters[name] for column, name in self.equal}


class OwnRead(NamedTuple):
    """The rows of its own table that an INSERT reads.

    :ivar code: of the race.
    :ivar numbers: the columns computed from these rows.
    """

    code: str
    condition: Condition
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sent:
    """Facts about a statement, from its text and its SQLAlchemy construct."""

    asks: bool = False  # with_for_update() appears somewhere
    locks: bool = False  # the text has a row lock
    locks_widely: bool = False  # it locks a name, or whole tables
    locks_file: bool = False
    begins: bool = False  # the text begins a transaction; drivers begin without text
    ends: bool = False  # the text ends the transaction
    savepoint: tuple[str, str] | None = None  # in the text: the first word, and the name
    level: str | None = None  # the isolation level that the text sets
    controls: bool = False  # the text has one of the above
    is_select: bool = False
    tables: frozenset[str] = frozenset()  # tables that it reads: lower case, without schema
    conditions: tuple[Condition, ...] = ()  # of a SELECT or UPDATE on one table
    locked: tuple[str, ...] = ()  # tables whose rows it locks, without conditions by key
    aggregates: bool = False  # it counts, or takes the maximum
    limited: bool = False
    update: WriteSent | None = None
    insert: Table | None = None
    inserts: tuple[tuple[str, str], ...] = ()  # columns in the text, each with its parameter
    own_read: OwnRead | None = None  # of an INSERT
    delete: Condition | None = None
    writes: bool = False
    written: frozenset[str] = frozenset()  # tables whose rows it changes or deletes


# Threads: the audit's listeners run in one thread at a time; the caches are safe.
_known: ByObject[Any, Sent] = ByObject()  # by the compiled statement
# By the text and the cache key, which is the same for all engines: a test suite may make many.
_by_structure: WeakValueDictionary[Any, Sent] = WeakValueDictionary()
_tables_by_name: WeakValueDictionary[str, Table] = WeakValueDictionary()


def facts_of(text: str, context: Any) -> Sent:
    """Return the facts about this statement, computed once while one of its compiled forms lives."""
    compiled = getattr(context, "compiled", None)
    if compiled is None:
        positional = context is not None and context.dialect.paramstyle == "qmark"
        return _facts_of_program_text(text, positional)
    found = _known.get(ref(compiled))
    if found is None:
        key = compiled.cache_key
        found = None if key is None else _by_structure.get((text, key.key))
        if found is None:
            found = _facts_of_compiled(text, compiled)
            if key is not None:
                _by_structure[text, key.key] = found
        _known.put(compiled, found)
    return found


@lru_cache(maxsize=1024)
def _facts_of_program_text(text: str, qmark: bool) -> Sent:
    """Return the facts about the program's text, which the driver sends unchanged."""
    return _with_text(_facts_of_text(text), with_names(text, qmark)[0])


@lru_cache(maxsize=1024)
def with_names(text: str, qmark: bool = False) -> tuple[str, Mapping[str, Any]]:
    """Return a text whose values are parameters, such as ``:total`` or ``:0``, and its literal values.

    :param qmark: a question mark is a parameter.
    """
    values: dict[str, Any] = {}
    positions = count()

    def name(found: re.Match[str]) -> str:
        if found["position"] is not None:
            is_parameter = (found[0] == "?") == qmark
            return f":{next(positions)}" if is_parameter else found[0]
        if found["number"] is not None:
            return f":{int(found['number']) - 1}"
        if found["name"] is not None:
            return f":{found['name']}"
        value = found["text"] or found["digits"]
        if value is None:
            return found[0]
        key = f"_{len(values)}"
        if found["text"] is not None:
            values[key] = value[1:-1].replace("''", "'")
        else:
            values[key] = float(value) if "." in value else int(value)
        return f":{key}"

    return _VALUE.sub(name, text), values


def parameters_of(context: Any) -> Sequence[Mapping[str, Any]]:
    """Return the parameters for each row of a statement, with the literal values in its text."""
    rows: Sequence[Any]
    compiled = context.compiled
    if compiled is not None and not isinstance(compiled.statement, TextClause):
        rows = context.compiled_parameters
        return [one for row in rows for one in _rows_in(row)] if compiled.isinsert else rows
    if compiled is not None:
        rows = context.compiled_parameters
        text, qmark = compiled.statement.text, False
    else:
        rows, text = context.parameters, context.statement
        qmark = context.dialect.paramstyle == "qmark"
    _, values = with_names(text, qmark)
    named = (
        row if isinstance(row, Mapping) else {str(at): one for at, one in enumerate(row)}
        for row in rows
    )
    return [{**values, **row} for row in named] or [values]


def _rows_in(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of ``values([...])``, whose parameters are named ``name_m0``, ``name_m1``."""
    rows: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        column, _, number = name.rpartition("_m")
        if column and number.isdecimal():
            rows.setdefault(number, {})[column] = value
    yield from rows.values() if rows else (row,)


@lru_cache(maxsize=1024)
def _facts_of_text(text: str) -> Sent:
    locks = _ROW_LOCK.search(text) is not None
    is_select = _QUERY.search(text) is not None
    modes = modes_of_tables(text, Mode.READ)
    tables = {name for name, _ in modes} if is_select else set()
    written = () if _INSERT.search(text) else (one for one, mode in modes if mode is Mode.WRITE)
    found = Sent(
        asks=locks,
        locks=locks,
        locks_widely=_WIDE_LOCK.search(text) is not None,
        locks_file=_FILE_LOCK.search(text) is not None,
        begins=_BEGIN.search(text) is not None,
        ends=_END.search(text) is not None,
        savepoint=_savepoint_of(text),
        level=(level_set_by(text) or None) if _SETTING.search(text) else None,
        is_select=is_select,
        tables=frozenset(tables),
        locked=tuple(tables) if locks else (),
        written=frozenset(written),
    )
    of_transaction = (found.locks_widely, found.begins, found.ends, found.savepoint, found.level)
    return replace(found, controls=any(of_transaction))


def _savepoint_of(text: str) -> tuple[str, str] | None:
    found = _SAVEPOINT.match(text)
    return found and (found["verb"].split()[0].upper(), table_name(found["name"]))


def _facts_of_compiled(text: str, compiled: Any) -> Sent:
    statement = written_out(compiled.statement)
    of_text = _facts_of_text(text)
    if isinstance(statement, TextClause):
        return _with_text(of_text, with_names(statement.text)[0])
    if not isinstance(statement, ClauseElement):
        return of_text
    elements = list(iterate(statement))
    found = replace(
        of_text,
        asks=of_text.locks or any(map(asks_for_lock, elements)),
        is_select=isinstance(statement, (Select, CompoundSelect)),
        tables=frozenset(map(plain_name, _tables(elements))),
        writes=isinstance(statement, UpdateBase),
    )
    if isinstance(statement, UpdateBase):
        return _with_writes(found, text, compiled.bind_names, elements)
    return _with_conditions(found, compiled, elements) if found.is_select else found


def _with_text(found: Sent, text: str) -> Sent:
    """Return the facts about a text, if it names only one mapped table."""
    if found.savepoint is not None:
        return found
    if found.is_select:
        return found if found.locks else replace(found, **_query_of_text(text))
    insert, inserts, update = _insert_of_text(text)
    update, own = update or _update_of_text(text), _own_read(text)
    writes = any(one is not None for one in (update, insert, own))
    return replace(
        found, update=update, insert=insert, inserts=inserts, own_read=own, writes=writes
    )


def _with_writes(found: Sent, text: str, names: _Names, elements: Sequence[Any]) -> Sent:
    statement = elements[0]
    table = statement.table
    if not isinstance(table, Table):
        return found
    _tables_by_name[plain_name(table)] = table
    if isinstance(statement, Insert):
        own, update = _own_read(text), _overwritten(statement, table)
        if own is not None:
            own = own._replace(condition=_condition(_criteria(elements), table, names))
        return replace(found, insert=table, update=update, own_read=own)
    condition = _condition(_parts(statement.whereclause), table, names)
    if isinstance(statement, Delete):
        return replace(found, delete=condition)
    return replace(found, update=_update(statement, condition), conditions=(condition,))


def _with_conditions(found: Sent, compiled: Any, elements: Sequence[Any]) -> Sent:
    statement = written_out(compiled.statement)
    tables = list(dict.fromkeys(_tables(elements)))
    for table in tables:
        _tables_by_name[plain_name(table)] = table
    plain = isinstance(statement, Select)
    conditions: tuple[Condition, ...] = ()
    if plain and len(tables) == 1:
        conditions = (_condition(_criteria(elements), tables[0], compiled.bind_names),)
    names = {getattr(one, "name", "") for one in elements if isinstance(one, FunctionElement)}
    of = for_update_tables(statement) if plain else []
    locked = [getattr(one, "element", one) for one in of] or tables if found.asks else []
    return replace(
        found,
        conditions=conditions,
        locked=tuple(plain_name(one) for one in locked if isinstance(one, Table)),
        aggregates=not names.isdisjoint(_AGGREGATES),
        limited=plain and has_limit(statement),
    )


_AGGREGATES: Final = ("count", "max", "sum")


def plain_name(table: Table) -> str:
    """Return the name of a table as it may appear in a text: lower case, without schema."""
    return str(table.name).lower()


def _tables(elements: Iterable[Any]) -> Iterator[Table]:
    for element in elements:
        table = element.table if isinstance(element, Column) else element
        if isinstance(table, Table):
            yield table


def table_named(name: str) -> Table | None:
    """Return the Table with this name in a text, if the program defines one."""
    found = _tables_by_name.get(name)
    if found is None:
        for mapper in all_mappers():
            for table in mapper.tables:
                if isinstance(table, Table):
                    _tables_by_name.setdefault(plain_name(table), table)
        found = _tables_by_name.get(name)
    return found


def asks_for_lock(element: Any) -> bool:
    """Return whether this part of a statement requests row locks."""
    if isinstance(element, (Select, CompoundSelect)):
        return for_update_clause(element) is not None
    return isinstance(element, TextClause) and _ROW_LOCK.search(element.text) is not None


# Conditions.


_Names = Mapping[BindParameter[Any], str]
"""The names of the parameters as sent."""


def _criteria(elements: Iterable[Any]) -> Iterator[Any]:
    """Yield the criteria of a statement's SELECTs; without a FROM, a condition's subquery replaces it."""
    for one in elements:
        if isinstance(one, Select):
            for part in _parts(one.whereclause):
                stands_for_it = any(isinstance(inner, Select) for inner in iterate(part))
                if not stands_for_it or one.get_final_froms():
                    yield part


def _condition(criteria: Iterable[Any], table: Table, names: _Names) -> Condition:
    parts = list(criteria)
    equal = [(one.column.key, names.get(one.value)) for one in map(_equality, parts) if one]
    known = [(column, name) for column, name in equal if name and column in table.columns]
    within = [
        one.left.key
        for one in parts
        if isinstance(one, BinaryExpression)
        and one.operator is operators.in_op
        and isinstance(one.left, Column)
        and isinstance(one.right, BindParameter)
    ]
    exact = len(known) + len(within) == len(parts)
    return Condition(table, plain_name(table), tuple(known), exact, frozenset(within))


def _parts(where: Any) -> Iterator[Any]:
    if isinstance(where, Grouping):
        yield from _parts(where.element)
    elif isinstance(where, BooleanClauseList) and where.operator is operators.and_:
        for part in where.clauses:
            yield from _parts(part)
    elif where is not None:
        yield where


class _Equality(NamedTuple):
    column: Column[Any]
    value: BindParameter[Any]


def _equality(part: Any) -> _Equality | None:
    if not isinstance(part, BinaryExpression) or part.operator is not operators.eq:
        return None
    for column, value in ((part.left, part.right), (part.right, part.left)):
        if isinstance(column, Column) and isinstance(value, BindParameter):
            return _Equality(column, value)
    return None


def _key_of(table: Table, equal: Mapping[str, str]) -> tuple[str, ...] | None:
    keys = [column.key for column in table.primary_key]
    return tuple(equal[one] for one in keys) if keys and equal.keys() >= {*keys} else None


def _columns(where: Any) -> Iterator[Column[Any]]:
    for element in () if where is None else iterate(where):
        if isinstance(element, Column):
            yield element


def conditions_of(statement: Any) -> frozenset[str]:
    """Return the columns in a SELECT's conditions, without columns that identify or reference a row."""
    return frozenset(
        one.key
        for one in _columns(getattr(statement, "whereclause", None))
        if not (one.primary_key or one.unique or one.foreign_keys)
    )


def tests_null(statement: Any, column: str) -> bool:
    """Return whether a SELECT has the condition that this column IS NULL."""
    return any(
        isinstance(part, BinaryExpression)
        and part.operator is operators.is_
        and getattr(part.left, "key", None) == column
        for part in _parts(getattr(statement, "whereclause", None))
    )


# Writes.


def _update(statement: Update, condition: Condition) -> WriteSent:
    table = condition.table
    keys = {column.key for column in table.primary_key}
    others = {one.key for one in _columns(statement.whereclause)} - keys
    rows = values_of(statement).rows
    values = tuple(_values(rows))
    return WriteSent(table, values, frozenset(others), condition.key(), from_parameters=True)


def _values(rows: Iterable[Mapping[Any, Any]]) -> Iterator[Value]:
    for row in rows:
        for column, value in row.items():
            key = str(getattr(column, "key", column))
            is_expression = isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")
            if isinstance(value, BindParameter):
                yield Value(key, frozenset({key, value.key}))
            elif not is_expression or _is_put_together(value, key):
                yield Value(key, frozenset({key}))


def _is_put_together(value: Any, column: str) -> bool:
    """Return whether an SQL expression uses values of the program, but not the old one, as case() may."""
    elements = list(iterate(getattr(value, "__clause_element__", lambda: value)()))
    names = {one.key for one in elements if isinstance(one, Column)}
    return column not in names and any(isinstance(one, BindParameter) for one in elements)


def _overwritten(statement: Insert, table: Table) -> WriteSent | None:
    """Return the columns of an existing row that an INSERT overwrites with the program's values."""
    if not values_of(statement).overwrites:
        return None
    conflict = conflict_of(statement)
    if conflict is None:  # OR REPLACE
        return whole_row(table)
    names = (column for column, value in conflict.sets.items() if _is_of_program(value))
    values = tuple(Value(name, frozenset({name})) for name in names)
    return replace(whole_row(table), values=values, from_parameters=False)


def whole_row(table: Table) -> WriteSent:
    """Return the write of an INSERT that replaces all columns of an existing row."""
    keys = tuple(column.key for column in table.primary_key)
    return WriteSent(table, (), frozenset(), keys, from_parameters=True)


def _is_of_program(value: Any) -> bool:
    """Return whether a value in ON CONFLICT comes from the program, directly or through the row to insert."""
    if isinstance(value, BindParameter) or not isinstance(value, ClauseElement):
        return True
    if not isinstance(value, Column):
        return False
    return getattr(value.table, "name", "") in ("excluded", "inserted", "new")


def _update_of_text(text: str) -> WriteSent | None:
    found = _UPDATE.match(text)
    table = None if found is None else table_named(table_name(found["table"]))
    if found is None or table is None:
        return None
    sets = filter(None, map(_EQUAL.match, found["sets"].split(",")))
    values = tuple(
        Value(table_name(one[1]), frozenset({table_name(one[1]), one[2]})) for one in sets
    )
    tests = _tests_in_text(found["where"] or "")
    if None in tests:
        return None  # possibly compare-and-set
    equal = {table_name(one[1]): one[2] for one in tests if one is not None}
    others = equal.keys() - {column.key for column in table.primary_key}
    return WriteSent(table, values, frozenset(others), _key_of(table, equal))


def _insert_of_text(
    text: str,
) -> tuple[Table | None, tuple[tuple[str, str], ...], WriteSent | None]:
    """Return the table of a text's INSERT, its columns with parameters, and the values it overwrites."""
    found = _VALUES.match(text)
    table = None if found is None else table_named(table_name(found["table"]))
    if found is None or table is None:
        return None, (), None
    pairs = zip(found["columns"].split(","), found["values"].split(","), strict=False)
    given = ((table_name(column), value.strip()) for column, value in pairs)
    inserts = tuple((column, value[1:]) for column, value in given if value[:1] == ":")
    key = _key_of(table, dict(inserts))
    if found["sets"]:
        values = tuple(_overwritten_in_text(found["sets"], dict(inserts)))
    elif "REPLACE" in found["verb"].upper():
        values = tuple(Value(column, frozenset({column, name})) for column, name in inserts)
    else:
        return table, inserts, None
    return table, inserts, WriteSent(table, values, frozenset(), key)


def _own_read(text: str) -> OwnRead | None:
    """Return the rows that an INSERT reads from its own table, if concurrent inserts change the result."""
    found = _WITH_SELECT.match(text)
    table = None if found is None else table_named(table_name(found["table"]))
    if found is None or table is None:
        return None
    own = rf"\bFROM\s+(?:\S+\.)?\W?{re.escape(str(table.name))}\b\W?(?:\s+WHERE\s+([^()]*))?"

    def reads(start: str, end: str = "") -> re.Match[str] | None:
        return re.search(start + own + end, found["body"], re.IGNORECASE | re.DOTALL)

    columns, values = map(table_name, found["columns"].split(",")), _first_list(found["values"])
    numbers = frozenset(
        column
        for column, value in zip(columns, values, strict=False)
        if _NEXT.search(value)
        and re.search(own if "FROM" in value.upper() else "", value, re.IGNORECASE)
    )
    if numbers and (where := reads("")):
        code = "max-plus-one"
    elif where := reads(r"\bNOT\s*\(?\s*EXISTS\s*\(\s*SELECT\b[^()]*?"):
        code = "check-then-insert"
    elif where := reads(r"SELECT\s+count\s*\([^()]*\)[^()]*?", r".*?\)\s*[<>]"):
        code = "capacity"
    else:
        return None
    return OwnRead(code, _condition_in_text(table, where[1] or ""), numbers)


def _first_list(text: str) -> list[str]:
    """Return the values before the FROM or WHERE, or before the closing parenthesis."""
    depth, found = 0, [""]
    for word in _WORD.findall(text):
        depth += (word == "(") - (word == ")")
        if depth < 0 or (depth == 0 and word.upper() in ("FROM", "WHERE")):
            break
        if word == "," and depth == 0:
            found.append("")
        else:
            found[-1] += word
    return found


def _overwritten_in_text(sets: str, inserts: Mapping[str, str]) -> Iterator[Value]:
    for one in sets.split(","):
        column, _, value = (part.strip() for part in one.partition("="))
        of_new = _OF_NEW_ROW.match(value)
        name = inserts.get(table_name(of_new[1])) if of_new else value[1:]
        if name is not None and (of_new or value[:1] == ":"):
            yield Value(table_name(column), frozenset({table_name(column), name}))


def _query_of_text(text: str) -> dict[str, Any]:
    found = _SELECT.match(text)
    table = None if found is None else table_named(table_name(found["table"]))
    if found is None or table is None:
        return {}
    return {
        "conditions": (_condition_in_text(table, found["where"] or ""),),
        "aggregates": _AGGREGATE.search(found["columns"]) is not None,
        "limited": "LIMIT" in found["rest"].upper(),
    }


def _condition_in_text(table: Table, where: str) -> Condition:
    tests = _tests_in_text(where)
    equal = tuple((table_name(one[1]), one[2]) for one in tests if one is not None)
    known = tuple(one for one in equal if one[0] in table.columns)
    return Condition(table, plain_name(table), known, exact=len(known) == len(tests))


def _tests_in_text(where: str) -> list[re.Match[str] | None]:
    parts = filter(str.strip, re.split(r"\bAND\b", where, flags=re.IGNORECASE))
    return [_EQUAL.match(part.strip()) for part in parts]


def values_sent(update: WriteSent, parameters: Mapping[str, Any]) -> tuple[Value, ...]:
    """Return the written columns, including columns that only the parameters name."""
    known = {value.column for value in update.values}.union(update.key or ())
    if not update.from_parameters:
        return update.values
    more = [name for name in parameters if name in update.table.columns and name not in known]
    return (*update.values, *(Value(name, frozenset({name})) for name in more))


def key_sent(names: Sequence[str] | None, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the values of these parameters; None if one is missing."""
    if names is None or not all(name in parameters for name in names):
        return None
    return tuple(parameters[name] for name in names)
