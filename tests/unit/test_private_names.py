"""Private names of SQLAlchemy stand in two files, one of the core and one of the guard; those of a session in session/.

Those of a driver stand in the module of its dialect.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import doclock_audit
import sa_doclock
from tests.support.rows import rows

PACKAGE, AUDITOR = (Path(package.__file__ or "").parent for package in (sa_doclock, doclock_audit))
MODULES = {
    **{str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))},
    **{str(path.relative_to(AUDITOR.parent)): path for path in sorted(AUDITOR.rglob("*.py"))},
}
EXEMPT = ("sqlalchemy_internals.py", "dml_internals.py")
PROTOCOL = {"events.py": {"_target_class_doc", "_dispatch_target"}}
"""The attributes that a class of events must define, as SQLAlchemy's own do."""


OF_DRIVERS = {"dialects/postgresql/pipeline.py": {"_fetch_gen"}}
"""The private names of drivers that a module needs; it says why, and which test fails without."""


DOCUMENTED = {"_asdict", "_replace", "_current_frames"}
"""Methods of every NamedTuple, and sys._current_frames()."""


def is_private(name: object) -> bool:
    if not isinstance(name, str) or name in DOCUMENTED:
        return False
    return name.startswith("_") and not name.endswith("__")


def read(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, object and name of every private attribute that is read or set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.lineno, ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value):
                yield node.lineno, ast.unparse(node.args[0]), str(name.value)


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module gives to its own classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield item.name
                elif isinstance(item, ast.AnnAssign):
                    yield ast.unparse(item.target)
                elif isinstance(item, ast.Assign):
                    yield from (ast.unparse(target) for target in item.targets)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in ("self", "cls")
        ):
            yield node.attr


def findings(tree: ast.Module, module: str, ours: set[str]) -> list[str]:
    """Return the private names of others that this module reads.

    ``self`` and ``cls`` may use what any class of the package defines, as they may have inherited
    it; all other objects only what the module itself defines.
    """
    own = set(defined(tree)) - PROTOCOL.get(module, set()) | OF_DRIVERS.get(module, set())
    found = []
    for line, of, name in read(tree):
        if name not in (ours if of in ("self", "cls", "super()") else own):
            found.append(f"{module}:{line}: {of}.{name}")
        elif of == "session" and not module.startswith(("core/session/", "session/")):
            found.append(f"{module}:{line}: {of}.{name} outside of session/")
    return found


@pytest.fixture(scope="module")
def trees() -> Mapping[str, ast.Module]:
    """Return all modules of the package, parsed once."""
    return {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


@pytest.fixture(scope="module")
def ours(trees: Mapping[str, ast.Module]) -> set[str]:
    """Return the private names that the package defines."""
    return {name for tree in trees.values() for name in defined(tree)}


@rows("module", MODULES)
def test_a_module_reads_no_private_name_of_others(
    trees: Mapping[str, ast.Module], ours: set[str], module: str
) -> None:
    found = findings(trees[module], module, ours)
    if module.startswith(("core/session/", "session/")):  # its modules work on one session together
        found = [line for line in found if " session._" not in line]
    if module not in EXEMPT:
        assert found == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("pool._max_overflow", "x.py:1: pool._max_overflow"),
        ("getattr(pool, '_max_overflow', None)", "x.py:1: pool._max_overflow"),
        ("class A(Session):\n    def f(self):\n        self._flushing", "x.py:3: self._flushing"),
        (
            "class A:\n    _b = 1\n\ndef f(session):\n    session._b",
            "x.py:5: session._b outside of session/",
        ),
    ],
    ids=["attribute", "getattr", "inherited", "session"],
)
def test_such_a_name_is_found(ours: set[str], source: str, line: str) -> None:
    assert findings(ast.parse(source), "x.py", ours) == [line]


def test_what_a_module_defines_itself_is_its_own() -> None:
    tree = ast.parse("class A:\n    def _f(self): self._f()\nA()._f()")
    assert findings(tree, "x.py", {"_f"}) == []
