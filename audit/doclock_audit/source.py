"""The program's source as a syntax tree; the audit reads it, but never imports or runs it."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from sqlalchemy.orm import Session

from .places import Place, Places, files_of_program

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXITS: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BRANCHES: Final = ("body", "orelse")
ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Guard(NamedTuple):
    """A condition, with its outcome when a line of the program executes."""

    test: ast.expr
    outcome: bool


class Unpacked(ast.Subscript):
    """An element that a loop or an assignment unpacks, as ``b`` in ``for a, b in rows``."""

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
        """The names of the function's parameters, without ``self``."""
        found = list(self._arguments())
        return frozenset(found) - {"self", "cls"}

    def _arguments(self) -> Iterator[str]:
        arguments = getattr(self.node, "args", None)
        if isinstance(arguments, ast.arguments):
            for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                yield one.arg

    def parameter_at(self, position: int) -> str | None:
        """Return the parameter for a positional argument, even in a method call."""
        found = [one for one in self._arguments() if one not in ("self", "cls")]
        return found[position] if position < len(found) else None

    def statement_at(self, line: int) -> ast.AST:
        """Return the innermost statement on this line; a statement with blocks covers only its head."""
        if line not in self._statements:
            found = [one for one in self.nodes if isinstance(one, ast.stmt) and covers(one, line)]
            blocks = ((one, getattr(one, "body", None)) for one in found)
            inner = [
                one
                for one, body in blocks
                if not isinstance(body, list) or line < getattr(body[0], "lineno", 0)
            ]
            nearest: list[ast.AST] = [*inner] or [*found] or [self.node]
            self._statements[line] = max(nearest, key=lambda one: getattr(one, "lineno", 0))
        return self._statements[line]

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str]]:
        """Yield each enclosing node with its parent and its role there, the innermost first."""
        while node in self._above:
            parent, field = self._above[node]
            yield node, parent, field
            node = parent

    def guards(self, node: ast.AST) -> Iterator[Guard]:
        """Yield the conditions around a node, and earlier conditions that would have left its block."""
        for inner, parent, field in self.around(node):
            yield from self._guards_in(inner, parent, field)
            block = getattr(parent, field)
            if isinstance(block, list) and isinstance(inner, ast.stmt):
                yield from _exits(block[: block.index(inner)])

    def _guards_in(self, inner: ast.AST, parent: ast.AST, field: str) -> Iterator[Guard]:
        match parent:
            case ast.If() | ast.IfExp() | ast.While() if field in _BRANCHES:
                yield Guard(parent.test, outcome=field == "body")
            case ast.BoolOp(op=op, values=values):
                before = values[: values.index(inner)] if inner in values else []
                yield from (Guard(one, outcome=isinstance(op, ast.And)) for one in before)
            case ast.For() | ast.AsyncFor() if field in _BRANCHES:
                is_body = field == "body"
                yield from self._of_items(parent.iter, inner) if is_body else _no_item(parent)
            case ast.Match(subject=subject, cases=[first, *_]) if inner is first:
                match first.pattern:
                    case ast.MatchSingleton(value=value):
                        is_value = ast.Compare(subject, [ast.Is()], [ast.Constant(value)])
                        yield Guard(ast.copy_location(is_value, subject), outcome=True)
                    case ast.MatchSequence(patterns=[]):
                        yield Guard(subject, outcome=False)
            case _ if field in _ELEMENTS:
                yield from self._of_items(parent, inner)

    def _of_items(
        self, items: ast.AST, use: ast.AST, seen: frozenset[str] = frozenset()
    ) -> Iterator[Guard]:
        """Yield the conditions that all items of a loop meet, such as in ``wanted - known``.

        :param seen: the variables already followed.
        """
        match items:
            case (
                ast.BinOp(left=wanted, op=ast.Sub(), right=known)
                | ast.Call(func=ast.Attribute(value=wanted, attr="difference"), args=[known])
            ):
                missing = ast.Compare(wanted, [ast.NotIn()], [known])
                yield Guard(ast.copy_location(missing, items), outcome=True)
            case ast.Call(func=ast.Name(id="filter"), args=[ast.Lambda(body=test), inner]):
                yield Guard(test, outcome=True)
                yield from self._of_items(inner, use, seen)
            case ast.Call(func=ast.Name(), args=[inner]):  # sorted(), list()
                yield from self._of_items(inner, use, seen)
            case ast.Name(id=name) if name not in seen:
                for value in self.definitions(name, use):
                    yield from self._of_items(value, value, seen | {name})
                    yield from self._of_append(value, name)
        for loop in getattr(items, "generators", ()):
            yield from (Guard(test, outcome=True) for test in loop.ifs)
            yield from self._of_items(loop.iter, items, seen)

    def _of_append(self, value: ast.AST, name: str) -> Iterator[Guard]:
        """Yield the conditions of an ``append()`` of this value to a variable."""
        around = [*self.around(value)]
        match around:
            case [(_, ast.Call(func=ast.Attribute(value=ast.IfExp(test=test, body=body))), _), *_]:
                yield Guard(test, outcome=name in names_in(body))
            case [(_, ast.Call(), _), *_]:
                yield from (
                    guard for one in around[1:] for guard in self._guards_in(*one[:2], one[2])
                )

    def definitions(self, name: str, use: ast.AST) -> list[ast.AST]:
        """Return the values that a variable may have at this use."""
        line = getattr(use, "lineno", 0)
        around = [*self.around(use)]
        parts = (getattr(parent, field) for _, parent, field in around)
        blocks = [one for one in parts if isinstance(one, list)]
        found: list[ast.AST] = []
        for node, value, replaces in self._defined_names.get(name, ()):
            if getattr(node, "lineno", 0) > line or node is use:
                continue
            assigns = isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
            if assigns and any(parent is node for _, parent, _ in around):
                continue  # the variable is used in its own new value
            if replaces and any(node in one for one in blocks):
                found.clear()  # on every path, it replaces the earlier values
            found.append(value)
        return found

    def set_in_items(self, name: str, use: ast.AST) -> Iterator[ast.AST]:
        """Yield the values that loops over a variable set in its items, as ``row["total"] += 1``."""
        for loop in self.nodes:
            match loop:
                case ast.For(target=ast.Name(id=item), iter=ast.Name(id=items)) if items == name:
                    yield from (
                        one for one in self.definitions(item, use) if isinstance(one, ast.Dict)
                    )

    def names_behind(self, expression: ast.AST, use: ast.AST) -> set[str]:
        """Return the variables of an expression, and the variables that determine their values."""
        found: set[str] = set()
        left = names_in(expression)
        while left:
            name = left.pop()
            found.add(name)
            left |= set().union(*map(names_in, self.definitions(name, use))) - found
        return found

    @cached_property
    def _defined_names(self) -> dict[str, list[tuple[ast.AST, ast.AST, bool]]]:
        """Each variable with its assigning nodes: node, value, and whether it replaces all others."""
        found: dict[str, list[tuple[ast.AST, ast.AST, bool]]] = {}
        for node in self.nodes:
            for name, value, replaces in _defined(node):
                found.setdefault(name, []).append((node, value, replaces))
        return found


_ELEMENTS: Final = ("elt", "key", "value")  # of comprehensions


def _no_item(loop: ast.For | ast.AsyncFor) -> Iterator[Guard]:
    """Yield the condition that a loop did not find the item it searched for."""
    for one in loop.body:
        if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Break):
            items = ast.comprehension(loop.target, loop.iter, [one.test], 0)
            found = ast.ListComp(getattr(loop.target, "elts", [loop.target])[0], [items])
            yield Guard(ast.copy_location(found, loop.iter), outcome=False)


def _exits(before: list[ast.stmt]) -> Iterator[Guard]:
    for one in before:
        if isinstance(one, ast.Assert):
            yield Guard(one.test, outcome=True)
        elif isinstance(one, ast.If):
            if isinstance(one.body[-1], _EXITS):
                yield Guard(one.test, outcome=False)
            elif one.orelse and isinstance(one.orelse[-1], _EXITS):
                yield Guard(one.test, outcome=True)
        elif isinstance(one, ast.While):
            breaks = [node for node in ast.walk(one) if isinstance(node, ast.Break)]
            if not breaks:
                yield Guard(one.test, outcome=False)
            for node in one.body:
                if isinstance(node, ast.If) and node.body[-1:] == breaks:
                    yield Guard(node.test, outcome=True)


def _defined(node: ast.AST) -> Iterator[tuple[str, ast.AST, bool]]:
    """Yield the variables that a node assigns, with the value, and whether it replaces all others."""
    match node:
        case (
            ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value)
            | ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name), slice=key), value=value)
        ):
            yield name, _item(node, key, value), False
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
            func=ast.Attribute(value=of, attr="append" | "extend" | "update"),
            args=arguments,
            keywords=keywords,
        ):
            either = (of.body, of.orelse) if isinstance(of, ast.IfExp) else (of,)
            for name in {one.id for one in either if isinstance(one, ast.Name)}:
                yield from ((name, value, False) for value in (*arguments, *keywords))


def _item(node: ast.AST, key: ast.expr, value: ast.expr) -> ast.Dict:
    """Return the dictionary item that ``variable[key] = value``, or ``+= value``, adds."""
    if isinstance(node, ast.AugAssign):
        value = ast.copy_location(ast.BinOp(node.target, node.op, value), value)
    return ast.copy_location(ast.Dict([key], [value]), value)


def _part_of(target: ast.expr, value: ast.expr, name: str) -> ast.expr:
    if not isinstance(target, ast.Tuple):
        return value
    if isinstance(value, ast.Tuple):
        for one, of_one in zip(target.elts, value.elts, strict=False):
            if name in names_in(one):
                return of_one
    for position, one in enumerate(target.elts):
        if name in names_in(one):
            if len(target.elts) > 1:
                return Unpacked(value, position)
            part = ast.Subscript(value, ast.Constant(0), ast.Load())
            return ast.fix_missing_locations(ast.copy_location(part, value))
    return value


def names_in(target: ast.AST) -> set[str]:
    """Return the names of the variables in an expression."""
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def certain_parts(test: ast.expr, *, outcome: bool | None) -> Iterator[Guard]:
    """Yield the parts of a condition whose outcome follows from the whole condition's; None: all parts."""
    match test:
        case ast.BoolOp(op=op, values=values):
            if outcome is None or isinstance(op, ast.And) == outcome:
                for one in values:
                    yield from certain_parts(one, outcome=outcome)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from certain_parts(operand, outcome=None if outcome is None else not outcome)
        case ast.NamedExpr(value=value) | ast.Call(func=ast.Name(id="bool"), args=[value]):
            yield from certain_parts(value, outcome=outcome)
        case _:
            yield Guard(test, outcome=bool(outcome))


def name_of(function: ast.expr) -> str:
    """Return the name of a called function or method."""
    return str(getattr(function, "id", getattr(function, "attr", "")))


def covers(node: ast.AST, line: int) -> bool:
    """Return whether the node contains this line."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        return isinstance(node, ast.withitem) and covers(node.context_expr, line)
    return bool(first <= line <= last)


# Threads: cached pure functions of source files.
@lru_cache(maxsize=4096)
def scope_of(place: Place) -> Scope | None:
    """Return the innermost function around this line, or the module; None without source."""
    tree = _tree_of(place.file)
    if tree is None:
        return None
    around = [node for first, last, node in functions_of(place.file) if first <= place.line <= last]
    return _scope(max(around, key=lambda node: getattr(node, "lineno", 0), default=tree))


_OF_DRIVER: Final = frozenset({"driver_connection", "dbapi_connection"})
_TO_DRIVER: Final = _OF_DRIVER | {"cursor", "raw_connection"}
_CALLS: Final = 2  # functions between the lines of a finding and the driver


@lru_cache(maxsize=4096)
def reaches_driver(places: Places) -> bool:
    """Return whether a function at these lines, or a function it calls, uses the raw driver connection.

    The audit does not see locks taken there.
    """
    scopes = filter(None, map(scope_of, places))
    names = {name for scope in scopes for name in _names_used(scope.node)}
    return not names.isdisjoint(_TO_DRIVER) or not names.isdisjoint(_reaching(files_of_program()))


@lru_cache(maxsize=2)
def _reaching(files: frozenset[str]) -> frozenset[str]:
    """Return the names of the program's functions that use the driver, directly or through calls."""
    found = frozenset[str]()
    for _ in range(_CALLS):
        found = found.union(*(_users_in(file, found | _TO_DRIVER) for file in files))
    return found


@lru_cache(maxsize=4096)
def _users_in(file: str, wanted: frozenset[str]) -> frozenset[str]:
    words = rf"\b(?:{'|'.join(map(re.escape, wanted))})\b"
    if not re.search(words, "".join(linecache.getlines(file))):
        return frozenset()
    functions = (node for _, _, node in functions_of(file))
    return frozenset(one.name for one in functions if not wanted.isdisjoint(_names_used(one)))


@lru_cache(maxsize=4096)
def _names_used(node: ast.AST) -> frozenset[str]:
    """Return the functions that a function calls, except SQLAlchemy's, and its uses of the driver."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and one.attr in _OF_DRIVER:
            found.add(one.attr)
        if isinstance(one, ast.Call):
            name = name_of(one.func)
            of_sqlalchemy = isinstance(one.func, ast.Attribute) and hasattr(Session, name)
            found |= set() if of_sqlalchemy else {name}
    return frozenset(found) - {""}


_scope = lru_cache(maxsize=1024)(Scope)


@lru_cache(maxsize=256)
def functions_of(file: str) -> tuple[tuple[int, int, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
    """Return the functions of a file, each with its first and last line."""
    found = []
    left: list[ast.AST] = [tree] if (tree := _tree_of(file)) else []
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((node.lineno, node.end_lineno or node.lineno, node))
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, ()) if not isinstance(node, ast.expr) else ()
    return tuple(found)


@lru_cache(maxsize=256)
def _tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
