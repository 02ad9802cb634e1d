"""The source of the program as a syntax tree: it is read, never imported or run."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from .places import Place

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXITS: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BRANCHES: Final = ("body", "orelse")


class Guard(NamedTuple):
    """A condition that has this outcome where a line of the program is executed."""

    test: ast.expr
    outcome: bool


class Unpacked(ast.Subscript):
    """An element of what a loop or an assignment takes apart, as ``b`` in ``for a, b in rows``."""

    def __init__(self, value: ast.expr, position: int) -> None:
        super().__init__(value, ast.Constant(position), ast.Load())
        self.position = position
        ast.fix_missing_locations(ast.copy_location(self, value))


class Scope:
    """A function, or a module without its functions."""

    def __init__(self, node: ast.AST) -> None:
        self.node = node
        self.nodes: list[ast.AST] = []
        self._above: dict[ast.AST, tuple[ast.AST, str]] = {}
        self._statements: dict[int, ast.AST] = {}  # by line
        left = [node]
        while left:
            one = left.pop()
            self.nodes.append(one)
            if one is not node and isinstance(one, _FUNCTIONS):
                continue
            for field, value in ast.iter_fields(one):
                for child in value if isinstance(value, list) else (value,):
                    if isinstance(child, ast.AST):
                        self._above[child] = one, field
                        left.append(child)
        self.nodes.sort(key=lambda one: getattr(one, "lineno", 0))

    @property
    def name(self) -> str:
        """The name of the function; empty for a module."""
        return getattr(self.node, "name", "")

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the function's parameters, less that of its object."""
        found = list(self._arguments())
        return frozenset(found) - {"self", "cls"}

    def _arguments(self) -> Iterator[str]:
        arguments = getattr(self.node, "args", None)
        if isinstance(arguments, ast.arguments):
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield one.arg

    def parameter_at(self, position: int) -> str | None:
        """Return the parameter that a positional argument is for, in a call of a method too."""
        found = [one for one in self._arguments() if one not in ("self", "cls")]
        return found[position] if position < len(found) else None

    def covering(self, line: int) -> Iterator[ast.AST]:
        """Yield the nodes that this line is part of."""
        return (node for node in self.nodes if covers(node, line))

    def statement_at(self, line: int) -> ast.AST:
        """Return the innermost statement that this line is part of."""
        if line not in self._statements:
            self._statements[line] = self._innermost(line)
        return self._statements[line]

    def _innermost(self, line: int) -> ast.AST:
        found: list[ast.AST] = [n for n in self.covering(line) if isinstance(n, ast.stmt)]
        inner = [node for node in found if not _has_blocks(node) or _head_covers(node, line)]
        return max(inner or found or [self.node], key=lambda one: getattr(one, "lineno", 0))

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str]]:
        """Yield each node with the one that it is part of, and as which part, the innermost first."""
        while node in self._above:
            parent, field = self._above[node]
            yield node, parent, field
            node = parent

    def guards(self, node: ast.AST) -> Iterator[Guard]:
        """Yield the conditions around a node, and those before it that would have left its block."""
        for inner, parent, field in self.around(node):
            if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and field in _BRANCHES:
                yield Guard(parent.test, outcome=field == "body")
            block = getattr(parent, field)
            if isinstance(block, list) and isinstance(inner, ast.stmt):
                yield from _exits(block[: block.index(inner)])

    def definitions(self, name: str, use: ast.AST) -> list[ast.AST]:
        """Return the values that a variable may have where it is used."""
        line = getattr(use, "lineno", 0)
        blocks = self._blocks_around(use)
        found: list[ast.AST] = []
        for node, value, replaces in self._defined_names.get(name, ()):
            if getattr(node, "lineno", 0) > line or node is use:
                continue
            if replaces and any(node in one for one in blocks):
                found.clear()  # the earlier ones are gone, whatever way was taken
            found.append(value)
        return found

    def _blocks_around(self, use: ast.AST) -> list[list[ast.AST]]:
        parts = (getattr(parent, field) for _, parent, field in self.around(use))
        return [one for one in parts if isinstance(one, list)]

    @cached_property
    def _defined_names(self) -> dict[str, list[tuple[ast.AST, ast.AST, bool]]]:
        """Each variable with the nodes that give it a value, that value, and whether it has no other then."""
        found: dict[str, list[tuple[ast.AST, ast.AST, bool]]] = {}
        for node in self.nodes:
            for name, value, replaces in _defined(node):
                found.setdefault(name, []).append((node, value, replaces))
        return found


def _has_blocks(node: ast.AST) -> bool:
    return isinstance(getattr(node, "body", None), list)


def _head_covers(node: ast.AST, line: int) -> bool:
    """Return whether the line is in front of the blocks of a statement, as in the test of an ``if``."""
    first: ast.AST = getattr(node, "body")[0]  # noqa: B009  # of some kinds of statements
    return line < getattr(first, "lineno", 0)


def _exits(before: list[ast.stmt]) -> Iterator[Guard]:
    for one in before:
        if isinstance(one, ast.Assert):
            yield Guard(one.test, outcome=True)
        elif isinstance(one, ast.If):
            if isinstance(one.body[-1], _EXITS):
                yield Guard(one.test, outcome=False)
            elif one.orelse and isinstance(one.orelse[-1], _EXITS):
                yield Guard(one.test, outcome=True)


def _defined(node: ast.AST) -> Iterator[tuple[str, ast.AST, bool]]:
    """Yield the variables that a node gives a value, with it, and whether they have no other then."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for name in names_in(target):
                    whole = isinstance(target, (ast.Name, ast.Tuple))
                    yield name, _part_of(target, value, name), whole
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value, True
        case (
            ast.AugAssign(target=target, value=value)
            | ast.NamedExpr(target=target, value=value)
            | ast.For(target=target, iter=value)
            | ast.AsyncFor(target=target, iter=value)
            | ast.withitem(context_expr=value, optional_vars=ast.expr() as target)
            | ast.comprehension(target=target, iter=value)
        ):
            for name in names_in(target):
                yield name, _part_of(target, value, name), False
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" | "update"),
            args=[value],
        ):
            yield name, value, False


def _part_of(target: ast.expr, value: ast.expr, name: str) -> ast.expr:
    if not isinstance(target, ast.Tuple):
        return value
    if isinstance(value, ast.Tuple):
        for one, of_one in zip(target.elts, value.elts, strict=False):
            if name in names_in(one):
                return of_one
    for position, one in enumerate(target.elts):
        if name in names_in(one):
            return Unpacked(value, position) if len(target.elts) > 1 else _only_part(value)
    return value


def _only_part(value: ast.expr) -> ast.expr:
    part = ast.Subscript(value, ast.Constant(0), ast.Load())
    return ast.fix_missing_locations(ast.copy_location(part, value))


def names_in(target: ast.AST) -> set[str]:
    """Return the names of the variables in an expression."""
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def parts_of(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the conditions that a condition is put together from."""
    match test:
        case ast.BoolOp(values=values):
            for one in values:
                yield from parts_of(one)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from parts_of(operand)
        case ast.NamedExpr(value=value) | ast.Call(func=ast.Name(id="bool"), args=[value]):
            yield from parts_of(value)
        case _:
            yield test


def certain_parts(test: ast.expr, *, outcome: bool) -> Iterator[Guard]:
    """Yield those of them whose outcome follows from that of the whole."""
    match test:
        case ast.BoolOp(op=op, values=values):
            if isinstance(op, ast.And) == outcome:
                for one in values:
                    yield from certain_parts(one, outcome=outcome)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from certain_parts(operand, outcome=not outcome)
        case ast.NamedExpr(value=value) | ast.Call(func=ast.Name(id="bool"), args=[value]):
            yield from certain_parts(value, outcome=outcome)
        case _:
            yield Guard(test, outcome)


def covers(node: ast.AST, line: int) -> bool:
    """Return whether the line is part of this node."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        return isinstance(node, ast.withitem) and covers(node.context_expr, line)
    return bool(first <= line <= last)


# Threads: the caches are of functions of source files, which have one answer.
@lru_cache(maxsize=4096)
def scope_of(place: Place) -> Scope | None:
    """Return the innermost function around this line, or the module; None where there is no source."""
    tree = _tree_of(place.file)
    if tree is None:
        return None
    around = [node for node in _functions_of(place.file) if covers(node, place.line)]
    return _scope(max(around, key=lambda node: getattr(node, "lineno", 0), default=tree))


@lru_cache(maxsize=1024)
def _scope(node: ast.AST) -> Scope:
    return Scope(node)


@lru_cache(maxsize=256)
def _functions_of(file: str) -> tuple[ast.AST, ...]:
    tree = _tree_of(file)
    return () if tree is None else tuple(n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS))


@lru_cache(maxsize=256)
def _tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
