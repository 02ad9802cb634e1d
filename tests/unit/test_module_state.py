"""State that a module keeps for all threads of a process has a sentence: why it is safe, also without a GIL.

It is found by a rule, not by a list: a name of a module or class that is bound to an empty container,
or that the module changes; a name that a function rebinds; a cached function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import doclock_audit
import pytest_sa_doclock
import sa_doclock
from tests.support.rows import rows

PACKAGES = [
    Path(one.__file__ or "").parent for one in (sa_doclock, pytest_sa_doclock, doclock_audit)
]
MODULES = {
    str(path.relative_to(package.parent)): path
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
}
SENTENCE = "# Threads: "
EMPTY = {
    *("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "count"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
}
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "setdefault", "update"),
}
CACHES = {"cache", "lru_cache"}
CONSTANT = ("Mapping[", "Sequence[")  # of a name that the module does not change


def name_of(node: ast.AST) -> str:
    """Return the last name of ``functools.lru_cache(...)``, ``set[str]()``, ``WeakSet``."""
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_empty(value: ast.AST | None) -> bool:
    if isinstance(value, (ast.Dict, ast.List)):
        return not ast.unparse(value).strip("{}[]")
    return isinstance(value, ast.Call) and not value.keywords and name_of(value) in EMPTY


def bound(body: list[ast.stmt]) -> Iterator[tuple[str, int, bool]]:
    """Yield the names that a module and its classes bind, their lines, and whether to empty containers."""
    for node in body:
        if isinstance(node, ast.Assign):
            yield from (
                (ast.unparse(one), node.lineno, is_empty(node.value)) for one in node.targets
            )
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            constant = any(one in ast.unparse(node.annotation) for one in CONSTANT)
            yield ast.unparse(node.target), node.lineno, is_empty(node.value) and not constant
        elif isinstance(node, ast.ClassDef):
            # A name that is also a variable of a function is no attribute that is changed.
            yield from (
                (f"{node.name}.{name}", line, empty) for name, line, empty in bound(node.body)
            )


def changed(tree: ast.Module) -> Iterator[str]:
    """Yield the names that the module changes, or that its functions rebind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        elif (isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)) or (
            isinstance(node, ast.Attribute) and node.attr in CHANGES
        ):
            yield ast.unparse(node.value)


def has_cache(tree: ast.Module) -> bool:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(name_of(one) in CACHES for node in functions for one in node.decorator_list)


def state_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield what a module keeps, with the line that binds it."""
    names = {*changed(tree)}
    for name, line, empty in bound(tree.body):
        if name != "__all__" and (empty or name in names):
            yield name, line


def unexplained(text: str) -> list[str]:
    """Return what has no sentence: in its line, or in the lines above it up to an empty one.

    The caches of a module share one, wherever it stands.
    """
    lines, tree = text.splitlines(), ast.parse(text)
    missing = []
    if has_cache(tree) and not re.search(f"{SENTENCE}.*cache", text):
        missing.append("cached functions")
    for name, line in state_of(tree):
        above = line - 1
        while above > 0 and lines[above - 1].strip():
            above -= 1
        if not any(SENTENCE in one for one in lines[above:line]):
            missing.append(f"{line}: {name}")
    return missing


@rows("module", MODULES)
def test_what_a_module_keeps_is_safe_in_threads_and_says_why(module: str) -> None:
    assert unexplained(MODULES[module].read_text(encoding="utf-8")) == []


@rows(
    "text",
    [
        "_seen = {}",
        "_seen: Final = set[str]()",
        "class C:\n    seen: dict[str, int] = {}",
        "_seen = WeakKeyDictionary()",
        "_numbers = itertools.count(1)",
        "_names = {'a': 1}\ndef f():\n    _names['b'] = 2",
        "_names = ['a']\ndef f():\n    _names.append('b')",
        "_last = None\ndef f():\n    global _last",
        "@lru_cache(maxsize=1)\ndef f(): ...",
    ],
)
def test_the_rule_finds_what_is_kept(text: str) -> None:
    assert len(unexplained(text)) == 1
    lines = text.splitlines()
    place = 1 if lines[0].startswith("class") else 0
    explained = [*lines[:place], f"    {SENTENCE}a cache is safe."[4 - 4 * place :], *lines[place:]]
    assert unexplained("\n".join(explained)) == []


@rows(
    "text",
    ["_NAMES = {'a': 1}", "x: Mapping[str, int] = {}", "def f():\n    seen = {}", "_lock = Lock()"],
)
def test_what_does_not_change_is_let_alone(text: str) -> None:
    assert unexplained(text) == []
