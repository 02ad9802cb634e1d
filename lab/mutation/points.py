"""Finds places where a small change makes a mutant, and builds source with such changes inside.

Each change stands beside the original, behind a switch: ``changed if switch else original``. So one import serves all mutants.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

#: The global of a changed module that holds the switches.
SWITCHES: Final = "__mutants__"

_OTHER: Final[Mapping[type[ast.AST], type[ast.AST]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}

_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


class Switches(set[int]):
    """The reached mutants, and the active one.

    ``add()`` is a C method that returns None, so counted calls do not change.
    """

    active = -1


def places(source: str) -> int:
    """Return the number of mutants in this source."""
    return _changed(source, set()).count


def mutated(source: str, wanted: Mapping[int, int]) -> tuple[ast.Module, dict[int, str]]:
    """Return the tree with some of its mutants behind switches, and the place of each.

    :param wanted: switch numbers by place number.
    """
    changer = _changed(source, wanted.keys(), wanted)
    return changer.tree, changer.reported


def _changed(
    source: str, wanted: Collection[int], switches: Mapping[int, int] | None = None
) -> _Changer:
    changer = _Changer(wanted, switches or {})
    changer.tree = ast.fix_missing_locations(changer.visit(ast.parse(source)))
    return changer


class _Changer(ast.NodeTransformer):
    """Counts the places within functions, and changes the wanted ones."""

    tree: ast.Module

    def __init__(self, wanted: Collection[int], switches: Mapping[int, int]) -> None:
        self.count = 0
        self.reported: dict[int, str] = {}
        self._wanted = wanted
        self._switches = switches
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._body(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._switch(node, _swap_comparison) if len(node.ops) == 1 else self._visited(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self._switch(node, _swap_operator)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        swaps = type(node.op) in _OTHER
        return self._switch(node, _swap_operator) if swaps else self._visited(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        negates = isinstance(node.op, ast.Not)
        return self._switch(node, _operand) if negates else self._visited(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self._switch(node, _next_value) if type(node.value) in {bool, int} else node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self._switched(node.test, _negated)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._switched(node.test, _negated)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._switched(node.value, _nothing)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, (ast.Call, ast.Await)):
            node.value = self._switched(node.value, _nothing)
        return node

    def _body(self, node: _Function) -> ast.AST:
        before, self._inside = self._inside, True
        node.body = [self.visit(statement) for statement in node.body]
        self._inside = before
        return node

    def _visited(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        return node

    def _switch(self, node: ast.expr, change: Callable[[ast.expr], ast.expr]) -> ast.AST:
        self.generic_visit(node)
        return self._switched(node, change)

    def _switched(self, node: ast.expr, change: Callable[[ast.expr], ast.expr]) -> ast.expr:
        place = self.count
        self.count += self._inside
        if not self._inside or place not in self._wanted:
            return node
        number = self._switches[place]
        other = change(copy.deepcopy(node))
        self.reported[number] = f"{node.lineno}: {_short(node)}  ->  {_short(other)}"
        text = f"{SWITCHES}.add({number}) or {SWITCHES}.active == {number}"
        switch = ast.parse(text, mode="eval").body
        return ast.copy_location(ast.IfExp(test=switch, body=other, orelse=node), node)


def _swap_comparison(node: ast.expr) -> ast.expr:
    assert isinstance(node, ast.Compare)
    (operator,) = node.ops
    node.ops = [_OTHER[type(operator)]()]  # type: ignore[list-item]
    return node


def _swap_operator(node: ast.expr) -> ast.expr:
    assert isinstance(node, (ast.BoolOp, ast.BinOp))
    node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
    return node


def _operand(node: ast.expr) -> ast.expr:
    assert isinstance(node, ast.UnaryOp)
    return node.operand


def _next_value(node: ast.expr) -> ast.expr:
    assert isinstance(node, ast.Constant)
    value = node.value
    return ast.Constant(not value if isinstance(value, bool) else value + 1)  # type: ignore[operator]


def _negated(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(op=ast.Not(), operand=node)


def _nothing(_: ast.expr) -> ast.expr:
    return ast.Constant(None)


def _short(node: ast.expr) -> str:
    return " ".join(ast.unparse(node).split())[:70]
