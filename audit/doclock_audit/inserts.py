"""Finds rows that the program inserts because a SELECT found, or did not find, other rows."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import ColumnDefault, Table

from . import cures
from .data_flow import Column, flows_of, in_variables, nodes_on
from .exploration.footprint import unique_groups
from .findings import AuditFinding
from .places import Place, Places, is_of_migration
from .rows import attributes_of, entity_of_table, header_rows, short_name
from .rules import MOST_TABLES, HeaderRows, Rows, Rule, keep_last
from .sent import Condition, OwnRead, Sent, plain_name
from .source import (
    ORDERS,
    Scope,
    certain_parts,
    covers,
    name_of,
    names_in,
    reaches_driver,
    scope_of,
)
from .transactions import Transaction, Write

_MOST_READS: Final = 50  # for each table
_END: Final = ast.Pass(lineno=1 << 30)  # after all lines of a function
_NOT_FOUND: Final = (
    *("NotFound", "NoResult", "DoesNotExist", "NoSuch", "Missing"),
    *("IndexError", "KeyError", "LookupError", "StopIteration"),
)
_RAISING: Final = ("one", "scalar_one", "get_one")
_ANY_ERROR: Final = ("", "Exception")


class _TableRead(NamedTuple):
    """The last execution of a SELECT on one table.

    :ivar equal: the values of the columns in the condition; None where unknown.
    :ivar writes: the statement is an UPDATE, or the INSERT itself.
    """

    places: Places
    number: int
    condition: Condition
    parameters: Mapping[str, Any]
    aggregates: bool = False
    writes: bool = False

    @property
    def equal(self) -> Mapping[str, Any] | None:
        return self.condition.values(self.parameters)

    @property
    def columns(self) -> frozenset[str]:
        return self.condition.within.union(column for column, _ in self.condition.equal)


class _Race(NamedTuple):
    """The race that the source shows.

    :ivar columns: the column of the computed number, or the columns that a search compares.
    :ivar certain: the columns are known.
    """

    code: str
    columns: frozenset[str] = frozenset()
    certain: bool = True


class NewRow(NamedTuple):
    """An inserted row.

    :ivar values: by column key.
    :ivar headers: the rows that the new row refers to.
    :ivar names: the parameters' names in the SQL text, by column.
    """

    table: Table
    values: Mapping[str, Any]
    headers: HeaderRows
    places: Places
    names: Mapping[str, str] = {}  # never modified


class InsertRace(Rule):
    """Certain if the source shows that the program inserts the row because of rows that it read.

    It is not a finding if a unique constraint or index prevents the second row, because the database
    detects the race.
    """

    code = "check-then-insert"

    def __init__(self) -> None:
        super().__init__()
        self._reads: OrderedDict[str, OrderedDict[Places, _TableRead]] = OrderedDict()

    def read_table(self, sent: Sent, places: Places, number: int, parameters: Rows) -> None:
        """Remember a SELECT, or an UPDATE that might find no row."""
        if self.is_of_tests is not None:
            places = self.without_tests(places)
        for condition in sent.conditions:
            known = self._reads.get(condition.name)
            if known is None:
                known = keep_last(self._reads, condition.name, OrderedDict(), MOST_TABLES)
            of = condition, parameters[0] if parameters else {}, sent.aggregates
            read = _TableRead(places, number, *of, not sent.is_select)
            keep_last(known, places, read, _MOST_READS)

    def wrote(self, transaction: Transaction, write: Write) -> None:
        table = write.mapper.local_table
        if write.kind != "insert" or not isinstance(table, Table):
            return
        if self._races(table, write.places, {}):
            columns = {
                str(one.columns[0].key): write.state.dict.get(one.key)
                for one in write.mapper.column_attrs
                if one.columns
            }
            headers = list(header_rows(write.state))
            self.inserted(transaction, NewRow(table, columns, headers, write.places))

    def _races(
        self, table: Table, places: Places, names: Mapping[str, str]
    ) -> list[tuple[_TableRead, _Race]]:
        known = self._reads.get(plain_name(table))
        if not known or self.is_test(places[0]):
            return []
        inserted = self.without_tests(places)
        columns = tuple(
            (key, of | {names[key]} if key in names else of)
            for key, of in attributes_of(table).items()
        )
        entity = short_name(entity_of_table(table))
        files = {place.file for place in inserted}
        return [
            (read, race)
            for read in known.values()
            if not files.isdisjoint(place.file for place in read.places)
            for race in races_of(read.places, inserted, read.aggregates, columns, entity)
            if not self.is_test(read.places[0])
        ]

    def inserted(self, transaction: Transaction, new: NewRow) -> None:
        """Judge a new row by the earlier SELECTs."""
        constants = set(_constants(new.table, new.values))
        for read, race in self._races(new.table, new.places, new.names):
            equal = read.equal
            same = equal is not None and all(
                _same(new.values.get(name), value) for name, value in equal.items()
            )
            if same and (equal or read.condition.exact) and race.columns.isdisjoint(equal or ()):
                # Databases lock differently for an UPDATE that finds no row.
                judged = race._replace(certain=race.certain and not read.writes)
                self._judge(transaction, new, read, judged, constants)

    def read_itself(self, transaction: Transaction, new: NewRow, own: OwnRead, number: int) -> None:
        """Judge an INSERT that reads rows of its own table.

        :param new: its values are the parameters of the statement.
        """
        read = _TableRead(new.places, number, own.condition, new.values, writes=True)
        self._judge(transaction, new, read, _Race(own.code, own.numbers), set())

    def _judge(
        self,
        transaction: Transaction,
        new: NewRow,
        read: _TableRead,
        race: _Race,
        constants: set[str],
    ) -> None:
        """Note the race unless the database or a lock excludes it.

        :param constants: columns that have the same value in each new row.
        """
        protection = transaction.protection
        if transaction.has_wide_lock or protection.excludes_inserts:
            return
        for _, header in new.headers:  # others must wait if it is locked or new
            lock = transaction.locks.get(header)
            if header in transaction.inserted or (lock and lock.is_before(read.number)):
                return
        kept_out = _keeps_out(new.table, constants.union(read.columns, race.columns))
        if kept_out is not True:
            certain = race.certain and kept_out is False
            certain = certain and not (read.writes and protection.joins_statements)
            self._note(transaction, new.table, read, new.places, race._replace(certain=certain))

    def _note(
        self,
        transaction: Transaction,
        table: Table,
        read: _TableRead,
        places: Places,
        race: _Race,
    ) -> None:
        locks = (one for one in transaction.locks.values() if not one.by_write)
        gate = any(lock.is_before(read.number) for lock in locks)
        certain = (
            race.certain and read.condition.exact and not gate and not transaction.tables_locked
        )
        certain = certain and not is_of_migration() and not reaches_driver((*read.places, *places))
        number = race.columns if race.code == "max-plus-one" else frozenset()
        where = ", ".join(sorted({*read.columns, *race.columns} - number))
        of = race.code, entity_of_table(table), where, "".join(number)
        self.count_at_end(
            transaction,
            (*of, str(read.places[0]), str(places[0])),
            lambda committed: certain and committed and not transaction.changes_schema,
        )

    def findings(self) -> Iterator[AuditFinding]:
        for key, certain, count in self.tally.strongest():
            code, entity, where, column, read, inserted = key
            name, of = short_name(entity), f" with the same {where}" if where else ""
            message = _MESSAGES[code].format(
                name=name, of=of, column=column, read=read, inserted=inserted
            )
            cure = _cure_of(code, name, where, column, read)
            found = self._finding(certain, message, (read, inserted), cure, count)
            yield replace(found, code=code)


_MESSAGES: Final = {
    "check-then-insert": "{inserted} inserts a row of {name} because {read} found none{of}, and no "
    "unique constraint or index prevents a second one; two concurrent transactions insert two",
    "capacity": "{inserted} inserts a row of {name} while {read} counts few enough{of}; two "
    "concurrent transactions get the same count, and insert one row too many",
    "max-plus-one": "{name}.{column} is computed from the rows{of} that {read} reads, and {inserted} "
    "inserts it; two concurrent transactions compute the same number",
}


def _cure_of(code: str, name: str, where: str, column: str, read: str) -> str:
    if code == "check-then-insert":
        return cures.check_then_insert(name, where)
    if code == "capacity":
        return cures.capacity(read)
    return cures.max_plus_one(read, f"{where}, {column}" if where else column)


def _same(one: object, other: object) -> bool:
    try:
        return one is not None and bool(one == other)
    except Exception:  # noqa: BLE001  # whatever the program's types raise
        return False


def _constants(table: Table, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the columns of a new row that hold their constant default, such as a singleton's key."""
    for column in table.columns:
        if isinstance(column.default, ColumnDefault) and column.default.is_scalar:
            constant = column.default.arg
            if _same(values.get(column.key, constant), constant):
                yield str(column.key)


def _keeps_out(table: Table, columns: Iterable[str]) -> bool | None:
    """Return whether the table allows at most one row with the same values in these columns.

    None: it depends, for a partial index or an index on an expression given as text.
    """
    names = set(columns)
    found: bool | None = False
    for group in unique_groups(table):
        keys = {column.key for column in group.columns}
        of_some = any(option.endswith("_where") for option in getattr(group, "dialect_kwargs", ()))
        if keys and keys <= names and not of_some:
            return True
        if of_some or len(getattr(group, "expressions", keys)) > len(keys):
            found = None
    return found


# The source.


_Returned = Literal["found", "none", "limit"]
"""A row was found; no row was found; there are too many or few enough rows."""

_OPPOSITE: Final[Mapping[_Returned, _Returned]] = {
    "found": "none",
    "none": "found",
    "limit": "limit",
}

_Columns = tuple[tuple[str, frozenset[str]], ...]
"""Columns, each with the names that the program uses for it."""


# Threads: cached pure functions of source files.
@lru_cache(maxsize=4096)
def races_of(
    read: Places,
    inserted: Places,
    aggregates: bool,
    columns: _Columns,
    entity: str,
) -> tuple[_Race, ...]:
    """Return the races that the source shows.

    :param entity: the name of the class whose row is inserted.
    """
    found = [
        _Race("max-plus-one", frozenset({key}))
        for key, of in columns
        if is_next_number(of, read, inserted, aggregates)
    ]
    for scope, before, after, says in _common(read, inserted):
        race = _race_in(scope, before.line, after.line, aggregates, entity, says)
        if race is not None:
            code, looked_up = race
            if looked_up is None:  # the SELECT has the same conditions as the row
                found.append(_Race(code))
            else:
                found += _compared(scope, after, columns, *looked_up)
            break
    if not found:
        found += _refused(read, inserted, aggregates)
    return tuple(found)


def _refused(read: Places, inserted: Places, aggregates: bool) -> Iterator[_Race]:
    scopes = {scope_of(after): after.line for after in inserted}
    for before, caller in pairwise(read):
        scope = scope_of(before)
        if scope is None or scopes.get(scope_of(caller), 0) <= caller.line:
            continue
        for node in scope.nodes:
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
                for part, outcome in certain_parts(node.test, outcome=False):
                    seen = _Seen(scope, part, before.line)
                    code = seen.code_of(part, outcome, aggregates)
                    if code is not None and seen.compared(part) is None:
                        yield _Race(code)
                        return


def _compared(
    scope: Scope, inserted: Place, columns: _Columns, names: frozenset[str], keys: frozenset[str]
) -> Iterator[_Race]:
    """Yield the race of a search, unless the search ignores the values of the new row.

    :param names: the columns that the search compares.
    :param keys: the variables that it looks for.
    """
    compared = [(key, of) for key, of in columns if of & names]
    use = scope.statement_at(inserted.line)
    behind = {key: list(_values_of(scope, inserted, use, of)) for key, of in compared}
    given = {key for key, values in behind.items() if values}
    of_key = {
        key
        for key, values in behind.items()
        if not keys or any(keys & scope.names_behind(one, use) for one in values)
    }
    if not given or of_key:
        yield _Race(
            "check-then-insert", frozenset(of_key or dict(compared)), certain=bool(given & of_key)
        )


def _race_in(
    scope: Scope, read: int, inserted: int, aggregates: bool, entity: str, says: _Returned
) -> tuple[str, tuple[frozenset[str], frozenset[str]] | None] | None:
    """Return the code of the race in which the program inserts a row depending on rows that it read.

    If the program looks something up in those rows, include the columns and variables of the look-up.

    :param says: what the reading function's true result means.
    """
    use = scope.statement_at(inserted)
    missed = _Seen(scope, use, read).missed()
    if missed is not None:
        return "check-then-insert", _Seen(scope, missed, read).compared(missed)
    for node in (use, *_made(scope, use, entity)):
        for guard in scope.guards(node):
            for part, outcome in certain_parts(guard.test, outcome=guard.outcome):
                seen = _Seen(scope, part, read)  # a variable may get another value later
                if says == "limit" and seen.is_read(part):
                    return "capacity", None
                code = seen.code_of(part, outcome is (says == "found"), aggregates)
                if code is not None:
                    return code, seen.compared(part) if code == "check-then-insert" else None
    return None


def _made(scope: Scope, use: ast.AST, entity: str) -> Iterator[ast.AST]:
    for node in (*nodes_on(use), *in_variables(scope, use, use, set())):
        if isinstance(node, ast.Dict) or (
            isinstance(node, ast.Call) and name_of(node.func) == entity
        ):
            yield node


def is_next_number(names: frozenset[str], read: Places, inserted: Places, aggregates: bool) -> bool:
    """Return whether the program computes a number of the new row from rows that it read."""
    for scope, before, after, _ in _common(read, inserted):
        use = scope.statement_at(after.line)
        seen = _Seen(scope, use, before.line)
        for value in _values_of(scope, after, use, names):
            if seen.is_read(value) and (aggregates or seen.adds(value)):
                return True
    return False


def _values_of(
    scope: Scope, place: Place, use: ast.AST, names: frozenset[str]
) -> Iterator[ast.AST]:
    for name in names:
        of = Column(name, names, frozenset())
        for flow in flows_of(scope, place.line, of, place):
            if flow.value is not None:
                yield flow.value
    for node in scope.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                is_column = isinstance(target, ast.Attribute) and target.attr in names
                if is_column and names_in(target) & names_in(use):
                    yield node.value


def _common(read: Places, inserted: Places) -> Iterator[tuple[Scope, Place, Place, _Returned]]:
    """Yield the functions that both read and insert, directly or through calls.

    Each comes with the meaning of a true result of the called function.
    """
    says: _Returned = "found"
    for before in read:
        scope = scope_of(before)
        if scope is None:
            return
        for after in inserted:
            if scope is scope_of(after) and before.line <= after.line:
                yield scope, before, after, says
        returned = _Seen(scope, _END, before.line).returned()
        if returned is None:
            return
        says = _OPPOSITE[returned] if says == "none" else returned


_WRAPPERS: Final = (
    *("len", "bool", "list", "tuple", "set", "any", "all", "next", "iter", "max", "int", "sorted"),
)


_WHOLE: Final = (
    *(ast.Attribute, ast.Await, ast.Subscript, ast.NamedExpr, ast.UnaryOp),
    *(ast.BinOp, ast.BoolOp, ast.Compare),
)


def _parts_of_value(node: ast.AST) -> list[ast.AST]:
    """Return the parts of an expression that determine its value."""
    match node:
        case ast.Call(func=ast.Attribute(value=of)):
            return [of]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return [*arguments] if name in _WRAPPERS else []
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
    if isinstance(node, _WHOLE):
        return [*ast.iter_child_nodes(node)]
    return [one.iter for one in getattr(node, "generators", ())]


def _key_of(node: ast.expr) -> ast.expr:
    """Return a comprehension's result for each row; for a dictionary, the key."""
    found: ast.expr = getattr(node, "key", None) or getattr(node, "elt")  # noqa: B009  # of some kinds
    return found


class _Seen:
    """The values in a function that come from one of its reading lines."""

    def __init__(self, scope: Scope, use: ast.AST, line: int) -> None:
        self._scope = scope
        self._use = use
        self._line = line

    def is_read(self, expression: ast.AST) -> bool:
        return any(
            isinstance(node, (ast.Call, ast.Attribute, ast.Await)) and covers(node, self._line)
            for node in self._origins(expression)
        )

    def adds(self, expression: ast.AST) -> bool:
        return any(
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
            for node in self._origins(expression)
        )

    def _origins(self, expression: ast.AST) -> Iterator[ast.AST]:
        """Yield an expression and the expressions that determine its value, except conditions."""
        seen: set[str] = set()
        left = [expression]
        while left:
            node = left.pop()
            yield node
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                left += self._scope.definitions(node.id, self._use)
            else:
                left += _parts_of_value(node)

    def returned(self) -> _Returned | None:
        """Return what a true result of the function says about the rows read; None: nothing."""
        for node in self._scope.nodes:
            match node:
                case ast.Return(value=ast.Constant(value=bool(is_true))):
                    for guard in self._scope.guards(node):
                        for part, outcome in certain_parts(guard.test, outcome=guard.outcome):
                            if (found := self._says(part)) is not None:
                                return found if outcome is is_true else _OPPOSITE[found]
                case ast.Return(value=ast.expr() as value) if self.is_read(value):
                    return self._says(value) or "found"
        return None

    def _says(self, condition: ast.expr) -> _Returned | None:
        codes = [self.code_of(condition, outcome, aggregates=False) for outcome in (True, False)]
        if "capacity" in codes:
            return "limit"
        if "check-then-insert" not in codes:
            return None
        return "none" if codes[0] else "found"

    def missed(self) -> ast.AST | None:
        """Return the look-up in a ``try`` if its ``except`` inserts the missing row."""
        for inner, parent, _ in self._scope.around(self._use):
            if isinstance(inner, ast.ExceptHandler) and isinstance(parent, ast.Try):
                text = "" if inner.type is None else ast.unparse(inner.type)
                for one in (node for part in parent.body for node in ast.walk(part)):
                    raises = isinstance(one, ast.Call) and name_of(one.func) in _RAISING
                    looks = isinstance(one, (ast.Subscript, ast.Call)) and self.is_read(one)
                    is_for_it = any(name in text for name in _NOT_FOUND)
                    if looks and (is_for_it or (raises and text in _ANY_ERROR)):
                        return one
        return None

    def compared(self, part: ast.AST) -> tuple[frozenset[str], frozenset[str]] | None:
        """Return the columns and variables that a condition looks up in the rows; None if it looks nothing up."""
        names: set[str] = set()
        keys: set[str] = set()
        looks = isinstance(part, ast.Compare) and isinstance(part.ops[0], (ast.In, ast.NotIn))
        if looks:
            keys |= names_in(getattr(part, "left"))  # noqa: B009  # of a comparison
        for node in self._origins(part):
            match node:
                case (
                    ast.Call(func=ast.Attribute(value=of, attr="get" | "pop"), args=[key, *_])
                    | ast.Subscript(value=of, slice=key)
                ):
                    is_position = isinstance(getattr(key, "value", None), int)
                    if self.is_read(of) and not (is_position or isinstance(key, ast.Slice)):
                        looks = True
                        keys |= names_in(key)
                case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                    tests = [test for one in node.generators for test in one.ifs]
                    tested = any(
                        isinstance(value, ast.Compare) for value in ast.walk(_key_of(node))
                    )
                    looks = looks or bool(tests) or tested
                    names |= {
                        inner.attr
                        for one in (_key_of(node), *tests)
                        for inner in ast.walk(one)
                        if isinstance(inner, ast.Attribute)
                    }
            if covers(node, self._line) and isinstance(node, ast.Call):
                calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
                selects = [one for one in calls if name_of(one.func) in ("select", "query")]
                columns = (column for one in selects for column in one.args)
                names |= {one.attr for one in columns if isinstance(one, ast.Attribute)}
        return (frozenset(names), frozenset(keys)) if looks else None

    def code_of(self, part: ast.expr, outcome: bool, aggregates: bool) -> str | None:
        """Return the code for a condition on the rows read; None for any other condition."""
        absent, of = _says_absent(part), part
        match part:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[of]):
                pass
            case ast.Compare(ops=[operator, *_]) if absent is None:
                compares = isinstance(operator, (*ORDERS, ast.Eq, ast.NotEq))
                calls = (node for node in self._origins(part) if isinstance(node, ast.Call))
                counted = any(name_of(one.func) in ("len", "count", "sum") for one in calls)
                counts = compares and (aggregates or counted)
                return "capacity" if counts and self.is_read(part) else None
        return "check-then-insert" if absent is outcome and self.is_read(of) else None


def _says_absent(condition: ast.expr) -> bool | None:
    """Return whether a true condition says that no row exists; None: unclear."""
    match condition:
        case ast.Compare(ops=[ast.In() | ast.NotIn() as operator]):
            return isinstance(operator, ast.NotIn)
        case ast.Compare(ops=[ast.Lt() | ast.GtE() as operator], comparators=[ast.Constant(1)]):
            return isinstance(operator, ast.Lt)
        case ast.Compare(ops=[operator, *_], comparators=[ast.Constant(value), *_]) if not value:
            differs = isinstance(operator, (ast.IsNot, ast.NotEq, ast.Gt))
            return None if isinstance(operator, ORDERS) and not differs else not differs
        case ast.Compare():
            return None
        case ast.Call(func=ast.Name("all"), args=[ast.GeneratorExp(elt=test)]):
            differs = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)
            return True if differs else None
    return False
