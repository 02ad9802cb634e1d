"""The imports between the files of the package, each led to the file that has the name.

An import that stands under ``TYPE_CHECKING`` or in a function counts like any other: a reader has
to follow it too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
Graph = Mapping[str, frozenset[str]]


@cache
def import_graph() -> Graph:
    """Return the files that each file imports from, by paths such as ``core/transaction/state.py``."""
    return {
        _name(path): frozenset(map(_name, _imported(path))) - {_name(path)}
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
    }


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imported(path: Path) -> Iterator[Path]:
    for node in _imports_of(path):
        origin = _origin(path, node)
        if origin is not None:
            yield from (found for one in node.names if (found := _home(origin, one.name)))


def _origin(path: Path, node: ast.ImportFrom) -> Path | None:
    """Return the file or folder that is imported from; None where it is none of ours."""
    parts = node.module.split(".") if node.module else []
    if node.level == 0:
        if parts[:1] != ["sa_doclock"]:
            return None
        return _file(PACKAGE.joinpath(*parts[1:]))
    return _file(path.parents[node.level - 1].joinpath(*parts))


def _file(place: Path) -> Path:
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _home(origin: Path, name: str) -> Path | None:
    """Return the file that defines a name which can be imported from this one."""
    if origin.name != "__init__.py":
        return origin if origin.exists() else None
    module = _file(origin.parent / name)
    if module.exists():
        return module
    for node in _imports_of(origin):
        if any(name == (one.asname or one.name) for one in node.names):
            inner = _origin(origin, node)
            return None if inner is None else _home(inner, name)
    return None  # defined in the __init__ itself


@cache
def _imports_of(path: Path) -> list[ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
