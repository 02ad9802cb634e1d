"""Finds the values that the program writes, and which of them it computes from values that it read.

A write that does not depend on the old value, such as ``user.name = form.name``, loses no change that
the program saw.  ``account.balance -= 5`` does.  Statements do not distinguish the two, but the
assigning function does.  A condition on the old value alone proves nothing: ``if user.active:
user.active = False`` writes the same value, whichever transaction comes first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from .places import Place, Places
from .source import ORDERS, Scope, Unpacked, certain_parts, name_of, names_in, scope_of

_EQUALS: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_SCALARS: Final = ("scalar", "scalar_one", "scalar_one_or_none", "count")


class Column(NamedTuple):
    """A written column.

    :ivar attribute: the attribute of the class, or the column's key.
    :ivar names: the names under which the program passes values: the column's own, and parameters.
    :ivar others: the other columns of the row.
    """

    attribute: str
    names: frozenset[str]
    others: frozenset[str]


# Threads: cached pure functions of source files.
@lru_cache(maxsize=4096)
def is_computed(column: Column, assigned: Places, read: Place) -> bool:
    """Return whether the new value of a column depends on its value in the row that was read.

    :param assigned: the assigning line, and the lines that called its function.
    :param read: the line that read the row.
    """
    for number, place in enumerate(assigned):
        scope = scope_of(place)
        flows = [] if scope is None else [*flows_of(scope, place.line, column, read)]
        if any(flow.is_computed() for flow in flows):
            return True
        if flows and number + 1 < len(assigned):
            return any(
                flow.is_computed() for one in flows for flow in one.in_caller(assigned[number + 1])
            )
        if flows:
            return False
    return False


@lru_cache(maxsize=4096)
def is_claimed(column: Column, assigned: Places, *, tests_null: bool) -> bool:
    """Return whether the write replaces the value that selected the row, so that others skip the row.

    :param tests_null: the SELECT requires a missing value.
    """
    scope = scope_of(assigned[0])
    nowhere = Place("", 0)
    flows = [] if scope is None else [*flows_of(scope, assigned[0].line, column, nowhere)]
    return any(tests_null or flow.is_constant() for flow in flows)


def flows_of(scope: Scope, line: int, column: Column, read: Place) -> Iterator[Flow]:
    """Yield the values that this line assigns or passes to the column."""
    statement = scope.statement_at(line)
    for value, of in _values_given(scope, statement, column.attribute, column.names):
        yield Flow(scope, statement, column, read, value, of)


@lru_cache(maxsize=4096)
def _values_given(
    scope: Scope, statement: ast.AST, attribute: str, names: frozenset[str]
) -> tuple[tuple[ast.expr | None, str | None], ...]:
    """Return the values that a statement gives to a column, each with the object that receives it."""
    found: list[tuple[ast.expr | None, str | None]] = []
    for node in nodes_on(statement):
        found += (
            *_by_statement(node, attribute),
            *_by_call(node, names),
            *_by_position(node, names),
        )
    for node in in_variables(scope, statement, statement, set()):
        given = (*_by_call(node, names), *_by_position(node, names))
        found += ((value, None) for value, _ in given)
    return tuple(found)


def nodes_on(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, without its nested blocks."""
    left = [statement]
    while left:
        node = left.pop()
        yield node
        left += [
            one
            for one in ast.iter_child_nodes(node)
            if not isinstance(one, (ast.stmt, ast.excepthandler))
        ]


def in_variables(
    scope: Scope, use: ast.AST, expression: ast.AST, seen: set[str]
) -> Iterator[ast.AST]:
    """Yield the nodes of the values of variables in the calls of an expression."""
    calls = [node for node in nodes_on(expression) if isinstance(node, ast.Call)]
    given = [expression, *(one for call in calls for one in _arguments(call))]
    for name in {one.id for one in given if isinstance(one, ast.Name)} - seen:
        seen.add(name)
        for value in (*scope.definitions(name, use), *scope.set_in_items(name, use)):
            yield from ast.walk(value)
            yield from in_variables(scope, use, value, seen)


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the receiver and arguments of a call, with ``values`` of ``[values]`` and ``**values``."""
    if isinstance(call.func, ast.Attribute):
        yield call.func.value
    for one in (*call.args, *(one.value for one in call.keywords if one.arg is None)):
        match one:
            case ast.List(elts=elements):
                yield from elements
            case ast.Subscript(value=value):
                yield value
            case _:
                yield one


def _by_statement(node: ast.AST, attribute: str) -> Iterator[tuple[ast.expr | None, str | None]]:
    match node:
        case ast.AugAssign(target=ast.Attribute(value=of, attr=name)) if name == attribute:
            yield None, ast.unparse(of)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned_to(target, value, attribute)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _assigned_to(target, value, attribute)


def _assigned_to(
    target: ast.expr, value: ast.expr, attribute: str
) -> Iterator[tuple[ast.expr, str | None]]:
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for one, of_one in zip(targets, values, strict=True):
                yield from _assigned_to(one, of_one, attribute)
        case ast.Tuple(elts=targets), _:
            for one in targets:
                yield from _assigned_to(one, value, attribute)
        case ast.Attribute(value=of, attr=name), _ if name == attribute:
            yield value, ast.unparse(of)


def _by_call(node: ast.AST, names: frozenset[str]) -> Iterator[tuple[ast.expr, str | None]]:
    """Yield the values in ``setattr(order, "total", ...)`` and ``values(total=...)``."""
    match node:
        case ast.Call(func=ast.Name(id="setattr"), args=[target, ast.Constant(value=name), value]):
            if name in names:
                yield value, ast.unparse(target)
        case ast.keyword(arg=name, value=value):
            if name in names:
                yield value, None
        case ast.Dict(keys=columns, values=values):
            for column, value in zip(columns, values, strict=True):
                if _named(column) in names:
                    yield value, None


def _by_position(node: ast.AST, names: frozenset[str]) -> Iterator[tuple[ast.expr, None]]:
    """Yield the column's values in a driver's parameters, ordered_values(), or formatted text."""
    match node:
        case ast.Tuple(elts=values) | ast.List(elts=values):
            # A driver's parameters are matched by position; ordered_values() takes pairs.
            yield from ((value, None) for at, value in enumerate(values) if str(at) in names)
            if len(values) == 2 and _named(values[0]) in names:  # noqa: PLR2004
                yield values[1], None
        case ast.JoinedStr(values=parts):
            for before, part in pairwise(parts):
                if isinstance(before, ast.Constant) and isinstance(part, ast.FormattedValue):
                    column = _SET_IN_TEXT.search(str(before.value))
                    if column is not None and column[1] in names:
                        yield part.value, None


_COLUMNS: Final = re.compile(r"\s*SELECT\s+([\w\s.,]+?)\s+FROM\b", re.IGNORECASE)
_SET_IN_TEXT: Final = re.compile(r"(\w+)\W?\s*=\s*'?$")


def _named(column: ast.expr | None) -> str | None:
    match column:
        case ast.Constant(value=str(name)) | ast.Attribute(attr=name):
            return name
    return None


@dataclass(frozen=True)
class Flow:
    """One value, and the expressions from which the function computes it.

    :ivar value: None if the value combines the old one with another operand.
    :ivar of: the source of the object; None for a column of a statement.
    """

    scope: Scope
    use: ast.AST
    column: Column
    read: Place
    value: ast.expr | None
    of: str | None
    names: set[str] = field(default_factory=set)

    def is_computed(self) -> bool:
        """Return whether the value depends on the old one, or claims a place that only one writer may take."""
        if self.value is None or self._depends(self.value):
            return True
        return any(self._decides(*guard) for guard in self.scope.guards(self.use))

    def is_constant(self) -> bool:
        """Return whether the value is a constant, or the member of a class."""
        match self.value:
            case ast.Constant():
                return True
            case ast.Attribute(value=of):
                return not names_in(of) & self.scope.parameters
        return False

    def in_caller(self, place: Place) -> Iterator[Flow]:
        """Yield the arguments in the calling function that became this value."""
        caller = scope_of(place)
        if caller is None or self.value is None:
            return
        statement = caller.statement_at(place.line)
        for node in nodes_on(statement):
            if isinstance(node, ast.Call) and name_of(node.func) == self.scope.name:
                given = {self.scope.parameter_at(at): one for at, one in enumerate(node.args)}
                given |= {one.arg: one.value for one in node.keywords}
                given.pop(None, None)  # from *values, **values
                of = self._object_in(node, given)
                for name in self._parameters_of(self.value):
                    if name in given:
                        yield Flow(caller, statement, self.column, self.read, given[name], of)

    def _object_in(self, call: ast.Call, given: dict[str | None, ast.expr]) -> str | None:
        if self.of in given:
            return ast.unparse(given[self.of])
        if self.of == "self" and isinstance(call.func, ast.Attribute):
            return ast.unparse(call.func.value)
        return "" if self.of is not None else None

    def _depends(self, expression: ast.AST) -> bool:
        match expression:
            case _ if self._is_old(expression):
                return True
            case ast.BoolOp(op=ast.Or(), values=[first, *rest]) if self._is_old(first):
                return any(self._varies(one) or self._depends(one) for one in rest)
            case ast.Attribute(value=of, attr=name) if self.of is None:
                return self._is_of_row(of, name)
            case ast.Subscript(value=of, slice=ast.Constant(value=name)) if self.of is None:
                return self._item_depends(expression, of, name)
            case ast.Name(id=name):
                return name not in self.names and self._variable_depends(name)
        return any(map(self._depends, self._parts(expression)))

    def _item_depends(self, item: ast.Subscript, of: ast.expr, name: object) -> bool:
        if isinstance(item, Unpacked):
            is_known = self._selected_at(of, item.position, set())
            return self._is_of_row(of, name) if is_known else self._depends(of)
        return self._is_of_row(of, name) or self._depends(of)

    def _parts(self, expression: ast.AST) -> list[ast.AST]:
        """Return the parts of the value's computation; the old value alone is not a write."""
        match expression:
            case ast.BoolOp(op=ast.Or(), values=values):
                return [one for one in values if not self._is_old(one)]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                rest = [one for one in (body, orelse) if not self._is_old(one)]
                return [test, *rest] if rest == [body, orelse] else [*rest]
            case ast.Call(func=ast.Attribute(attr="get" | "pop") as function, args=[key, default]):
                return [function, key, *([] if self._is_old(default) else [default])]
        return [*ast.iter_child_nodes(expression)]

    def _is_old(self, expression: ast.AST) -> bool:
        return (
            isinstance(expression, ast.Attribute)
            and expression.attr == self.column.attribute
            and ast.unparse(expression.value) == self.of
        )

    def _is_of_row(self, of: ast.expr, name: object) -> bool:
        """Return whether an attribute or item of this name, on a row that was read, is the old value."""
        if name in self.column.others:
            return False
        if isinstance(name, int) and (selected := self._selected_at(of, name, set())):
            return selected in self.column.names and self._is_row(of, set())
        if isinstance(of, ast.Name):
            return self._is_row(of, set())
        is_object = isinstance(of, (ast.Call, ast.Await)) and self._is_read(of)
        return (is_object and name in self.column.names) or self._depends(of)

    def _selected_at(self, of: ast.AST, position: int, seen: set[str]) -> str:
        """Return the column at this position of the SELECT, or "" if it is unclear."""
        if isinstance(of, ast.Name) and of.id not in seen:
            seen.add(of.id)
            values = self.scope.definitions(of.id, self.use)
            return next(filter(None, (self._selected_at(v, position, seen) for v in values)), "")
        for node in ast.walk(of) if self._is_read(of) else ():
            columns: list[str] = []
            if isinstance(node, ast.Call) and name_of(node.func) in ("select", "query"):
                columns = [getattr(one, "attr", "") for one in node.args]
            elif isinstance(node, ast.Constant) and (text := _COLUMNS.match(str(node.value))):
                columns = [
                    one.split()[-1].rpartition(".")[2] for one in text[1].split(",") if one.strip()
                ]
            if columns:
                return columns[position] if position < len(columns) else ""
        return ""

    def _is_row(self, of: ast.AST, seen: set[str]) -> bool:
        if not isinstance(of, ast.Name):
            return self._is_read(of)
        if of.id in seen:
            return False
        seen.add(of.id)
        return any(self._is_row(one, seen) for one in self.scope.definitions(of.id, self.use))

    def _variable_depends(self, name: str) -> bool:
        self.names.add(name)
        try:
            values = self.scope.definitions(name, self.use)
            scalars = self.of is None and any(map(self._is_scalar_of_column, values))
            return scalars or any(map(self._depends, values))
        finally:
            self.names.discard(name)

    def _is_scalar_of_column(self, value: ast.AST) -> bool:
        """Return whether the expression is a single value that was read, and might be the old one."""
        if not self._is_read(value) or not _is_scalar(value) or isinstance(value, Unpacked):
            return False
        selected = self._selected_at(value, 0, set())
        return not selected or selected in self.column.names

    def _is_read(self, value: ast.AST) -> bool:
        line, end = getattr(value, "lineno", 0), getattr(value, "end_lineno", 0)
        return bool(line <= self.read.line <= end)

    def _varies(self, expression: ast.AST) -> bool:
        return bool(self._parameters_of(expression))

    def _parameters_of(self, expression: ast.AST) -> set[str]:
        """Return the parameters behind a value, without the objects whose methods it calls."""
        found: set[str] = set()
        seen: set[str] = set()
        left = [expression]
        while left:
            node = left.pop()
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                values = self.scope.definitions(node.id, self.use)
                left += values
                if not values and node.id in self.scope.parameters:
                    found.add(node.id)
            elif isinstance(node, ast.Call):
                left += [*node.args, *(one.value for one in node.keywords)]
            else:
                left += ast.iter_child_nodes(node)
        return found

    # Conditions on the old value.

    def _decides(self, test: ast.expr, outcome: bool) -> bool:
        """Return whether only one of two writers with different values can pass the condition."""
        if self.of is None or self.value is None:
            return False
        for part, _ in certain_parts(test, outcome=None):
            calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
            # The result of a function that takes the old value is unknown here.
            asks = any(self._mentions(one) for call in calls for one in call.args)
            if asks or (self._mentions(part) and self._compares_with_new(part, _EQUALS)):
                return False
        return self._varies(self.value) and any(
            self._compares_with_new(one, ORDERS) or self._is_empty(one, is_true)
            for one, is_true in certain_parts(test, outcome=outcome)
            if self._mentions(one)
        )

    def _mentions(self, part: ast.AST) -> bool:
        return any(map(self._stands_for_old, ast.walk(part)))

    def _stands_for_old(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return any(map(self._is_old, self.scope.definitions(node.id, self.use)))
        return self._is_old(node)

    def _compares_with_new(self, part: ast.expr, operators: tuple[type[ast.cmpop], ...]) -> bool:
        if not isinstance(part, ast.Compare) or not isinstance(part.ops[0], operators):
            return False
        new = self._texts(self.value) if self.value is not None else set()
        sides = [one for one in (part.left, *part.comparators) if not self._stands_for_old(one)]
        return any(self._texts(side) & new for side in sides)

    def _texts(self, expression: ast.AST) -> set[str]:
        """Return the variables of an expression, and the attributes that it reads from them."""
        if isinstance(expression, ast.Attribute):
            return {ast.unparse(expression)}
        if isinstance(expression, ast.Name):
            values = self.scope.definitions(expression.id, self.use)
            nodes = (node for value in values for node in ast.walk(value))
            named = (one for one in nodes if isinstance(one, (ast.Name, ast.Attribute)))
            return {expression.id, *map(ast.unparse, named)}
        return set().union(*map(self._texts, ast.iter_child_nodes(expression)))

    def _is_empty(self, part: ast.expr, is_true: bool) -> bool:
        """Return whether this outcome means that the old value marked the row as free."""
        match part:
            case ast.Compare(ops=[op], comparators=[ast.Constant() | ast.Attribute()]):
                return isinstance(op, (ast.Eq, ast.Is) if is_true else (ast.NotEq, ast.IsNot))
            case ast.Compare():
                return False
        return not is_true and self._stands_for_old(part)


def _is_scalar(value: ast.AST) -> bool:
    match value:
        case ast.Await(value=inner):
            return _is_scalar(inner)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _SCALARS
        case ast.BoolOp(values=[first, *_]) | ast.BinOp(left=first):
            return _is_scalar(first)
    return isinstance(value, ast.Subscript)
