"""The source of the program: is a value that it writes computed from what it has read?

A write that does not depend on the old value, such as ``user.name = form.name``, loses nothing that
the program has looked at.  ``account.balance -= 5`` does, and so does a value that was tested before
it is replaced.  Statements do not tell the two apart; the function that assigns does.  It is read as
a syntax tree, never imported or run.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from .places import Place, Places

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


# Threads: the caches are of functions of source files, which have one answer.
@lru_cache(maxsize=4096)
def is_computed(
    attribute: str, assigned: Places, read: Place, columns: frozenset[str], keys: frozenset[str]
) -> bool:
    """Return whether the new value of an attribute depends on the row that was read.

    :param assigned: the line that has assigned it, and the lines that have called that function.
    :param read: the line that has read the row.
    :param columns: the attributes of the class.
    :param keys: those of the primary key, which do not change.
    """
    for place in assigned:
        scope = _scope_of(place)
        if scope is None:
            continue
        found = list(_assignments(scope, place.line, attribute))
        if any(_Flow(scope, one, read, columns - keys, keys).is_computed() for one in found):
            return True
        if not found and place is not assigned[0] and _passes_on(scope, place.line, attribute):
            return True
    return False


class _Assignment(NamedTuple):
    """An expression that becomes the value of an attribute or column."""

    attribute: str
    line: int
    value: ast.expr | None  # None: the old value and another operand
    of: str | None  # the source of the object; None for a column of a statement


def _assignments(scope: ast.AST, line: int, attribute: str) -> Iterator[_Assignment]:
    """Yield what becomes the value on this line, by assignment or in the call of a statement."""
    for node in _nodes_of(scope):
        if _covers(node, line):
            yield from _by_statement(node, line, attribute)
            for value, of in _by_call(node, attribute):
                yield _Assignment(attribute, line, value, of)


def _by_statement(node: ast.AST, line: int, attribute: str) -> Iterator[_Assignment]:
    match node:
        case ast.AugAssign(target=ast.Attribute(attr=name)) if name == attribute:
            yield _Assignment(attribute, line, None, None)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned_to(target, value, line, attribute)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _assigned_to(target, value, line, attribute)


def _by_call(node: ast.AST, attribute: str) -> Iterator[tuple[ast.expr, str | None]]:
    """Yield what ``setattr(order, "total", ...)`` and ``values(total=...)`` give to the attribute."""
    match node:
        case ast.Call(func=ast.Name(id="setattr"), args=[target, ast.Constant(value=name), value]):
            if name == attribute:
                yield value, ast.unparse(target)
        case ast.keyword(arg=name, value=value):
            if name == attribute:
                yield value, None
        case ast.Dict(keys=columns, values=values):
            for column, value in zip(columns, values, strict=True):
                if _names(column) == attribute:
                    yield value, None


def _assigned_to(
    target: ast.expr, value: ast.expr, line: int, attribute: str
) -> Iterator[_Assignment]:
    if isinstance(target, ast.Tuple):
        for one in target.elts:
            yield from _assigned_to(one, value, line, attribute)
    elif isinstance(target, ast.Attribute) and target.attr == attribute:
        yield _Assignment(attribute, line, value, ast.unparse(target.value))


def _names(column: ast.expr | None) -> str | None:
    """Return the column that a key of a dictionary names: ``"total"``, ``Order.total``."""
    match column:
        case ast.Constant(value=str(name)):
            return name
        case ast.Attribute(attr=name):
            return name
    return None


@dataclass(frozen=True)
class _Flow:
    """The expressions of one function that a value is computed from."""

    scope: ast.AST
    assignment: _Assignment
    read: Place
    names: frozenset[str]
    keys: frozenset[str]

    def is_computed(self) -> bool:
        """Return whether one of them is a value that was read."""
        value = self.assignment.value
        if value is None:
            return True
        return self._depends(value, set()) or any(map(self._decides, self._tests()))

    def _depends(self, expression: ast.AST, seen: set[str]) -> bool:
        match expression:
            case ast.Attribute(attr=name) if name in self.keys:
                return False
            case ast.Attribute(value=of, attr=name) if name in self.names:
                if ast.unparse(of) == self.assignment.of:
                    return True
            case ast.Name(id=name) if name not in seen:
                seen.add(name)
                return any(self._defines(one, seen) for one in self._definitions(name))
        return any(self._depends(one, seen) for one in ast.iter_child_nodes(expression))

    def _defines(self, value: ast.AST, seen: set[str]) -> bool:
        """Return whether a variable that has this value was read from the row, or computed from it."""
        line, end = getattr(value, "lineno", 0), getattr(value, "end_lineno", 0)
        if line <= self.read.line <= end:
            return True
        return self._depends(value, seen)

    def _definitions(self, name: str) -> Iterator[ast.AST]:
        for node in _nodes_of(self.scope):
            if getattr(node, "lineno", 0) > self.assignment.line:
                continue
            match node:
                case ast.Assign(targets=targets, value=value):
                    if any(name in _targets(target) for target in targets):
                        yield value
                case (
                    ast.AnnAssign(target=target, value=ast.expr() as value)
                    | ast.AugAssign(target=target, value=value)
                    | ast.NamedExpr(target=target, value=value)
                    | ast.For(target=target, iter=value)
                    | ast.AsyncFor(target=target, iter=value)
                    | ast.withitem(context_expr=value, optional_vars=ast.expr() as target)
                    | ast.comprehension(target=target, iter=value)
                ):
                    if name in _targets(target):
                        yield value

    def _tests(self) -> Iterator[ast.expr]:
        """Yield the conditions in front of the assignment, and around it."""
        for node in _nodes_of(self.scope):
            match node:
                case (
                    ast.If(test=test)
                    | ast.While(test=test)
                    | ast.Assert(test=test)
                    | ast.IfExp(test=test)
                ) if test.lineno <= self.assignment.line:
                    yield test

    def _decides(self, test: ast.expr) -> bool:
        """Return whether a condition looks at the old value for more than "is it another?"."""
        of, attribute = self.assignment.of, self.assignment.attribute
        if of is None or self._compares_with_new(test):
            return False
        return any(ast.unparse(node.value) == of for node in _attributes(test, attribute))

    def _compares_with_new(self, test: ast.expr) -> bool:
        match test:
            case ast.Compare(left=left, ops=[ast.NotEq() | ast.IsNot()], comparators=[right]):
                value = ast.dump(self.assignment.value) if self.assignment.value else ""
                return any(ast.dump(one) in value for one in (left, right))
        return False


def _targets(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _passes_on(scope: ast.AST, line: int, attribute: str) -> bool:
    """Return whether a call on this line has an argument that looks at this attribute."""
    for node in _nodes_of(scope):
        if isinstance(node, ast.Call) and _covers(node, line):
            arguments = (*node.args, *(one.value for one in node.keywords))
            if any(any(_attributes(argument, attribute)) for argument in arguments):
                return True
    return False


def _attributes(expression: ast.AST, name: str) -> Iterator[ast.Attribute]:
    """Yield where this attribute, of whatever object, stands in an expression."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute) and node.attr == name:
            yield node


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        return isinstance(node, ast.withitem) and _covers(node.context_expr, line)
    return bool(first <= line <= last)


@lru_cache(maxsize=4096)
def _scope_of(place: Place) -> ast.AST | None:
    """Return the innermost function around this line, or the module; None where there is no source."""
    tree = _tree_of(place.file)
    if tree is None:
        return None
    around = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    around = [node for node in around if _covers(node, place.line)]
    return max(around, key=lambda node: node.lineno, default=tree)


@lru_cache(maxsize=256)
def _tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=512)
def _nodes_of(scope: ast.AST) -> tuple[ast.AST, ...]:
    """Return what is in this function, or in the module and in none of its functions."""
    found, inner = [scope], [*ast.iter_child_nodes(scope)]
    while inner:
        node = inner.pop()
        found.append(node)
        if not isinstance(node, _FUNCTIONS):
            inner.extend(ast.iter_child_nodes(node))
    return tuple(found)
