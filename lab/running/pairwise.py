"""The selection of ``--pairwise``: pairs of test, database and parameters instead of all combinations.

The items of one file are a table.  Its columns are the test, the database, and each parameter by name.
The selection covers each pair of values in the table, in as few rows as a greedy search finds: each test
on each database and with each value of its parameters; somewhere in the file, each value on each
database, and any two values of two parameters together.  SQLite's two journals, and PostgreSQL with and
without a pipeline, count as one database here; the selection still has each variant that
the file has.

MySQL and MariaDB share InnoDB, so they too count as one database here, and take turns by test.  But a test runs on both
if a marker, its text, or the text of its helpers in the same file names either: a statement about MySQL need not hold
for MariaDB.

If the library decides by itself, the database is not part of a pair: each occurs somewhere in the file.  If a
test is marked ``each_value``, its parameters are independent: two of their values need not meet.

The selection depends only on the items and the text of their files.
"""

from __future__ import annotations

import ast
import heapq
import itertools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import product

Pairs = frozenset[Hashable]

#: The comment above a section of a test file; its heading follows.
_SECTION = "# -----"

_ON_INNODB = re.compile("mysql|mariadb", re.IGNORECASE)


def select(
    items: Sequence[pytest.Item], is_own_logic: Callable[[pytest.Item], bool]
) -> list[pytest.Item]:
    """Return the selected items, in their order.

    :param is_own_logic: whether an item tests a decision of the library itself.
    """
    files: defaultdict[str, dict[str, Pairs]] = defaultdict(dict)
    for item in items:
        pairs = _pairs(item, own_logic=is_own_logic(item))
        files[item.nodeid.partition("::")[0]][item.nodeid] = pairs
    kept = set(itertools.chain.from_iterable(map(cover, files.values())))
    return [item for item in items if item.nodeid in kept]


def cover(rows: Mapping[str, Pairs]) -> Iterator[str]:
    """Generate the names of rows that cover all pairs; each time, take a row with the most new pairs.

    :param rows: the pairs of each row, by name.
    """
    names = sorted(rows, key=lambda name: (zlib.crc32(name.encode()), name))
    heap = [(-len(rows[name]), order) for order, name in enumerate(names)]
    heapq.heapify(heap)
    left: set[Hashable] = set().union(*rows.values())
    while left:
        expected, order = heap[0]
        row = rows[names[order]]
        if (new := len(row & left)) < -expected:  # counted before other rows were taken
            heapq.heapreplace(heap, (-new, order))
            continue
        heapq.heappop(heap)
        left -= row
        yield names[order]


def _pairs(item: pytest.Item, *, own_logic: bool) -> Pairs:
    test = item.nodeid.partition("[")[0]
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return frozenset({test})
    values = [
        (name, _comparable(value))
        for name, value in sorted(callspec.params.items())
        if name != "database"
    ]
    pairs: list[Hashable] = [test, *((test, value) for value in values)]
    if not any(item.iter_markers("each_value")):
        pairs += itertools.combinations(values, 2)
    column = callspec.params.get("database")
    if isinstance(column, str):
        pairs.append(column)
        if not own_logic:
            pairs.append((test, product(column) if _names_one(item) else _family(column)))
            pairs += [(value, _family(column)) for value in values]
    return frozenset(pairs)


def _family(column: str) -> str:
    return "innodb" if _ON_INNODB.fullmatch(product(column)) else product(column)


def _names_one(item: pytest.Item) -> bool:
    """Return whether a marker or the file of a test names MySQL or MariaDB."""
    names = itertools.chain.from_iterable(
        mark.args for kind in ("databases", "not_databases") for mark in item.iter_markers(kind)
    )
    test = item.nodeid.partition("::")[2].partition("[")[0].partition("::")[0]
    return any(map(_ON_INNODB.fullmatch, names)) or test in _tests_that_name_one(item.path)


@cache
def _tests_that_name_one(path: Path) -> set[str]:
    """Return the names in a file whose code names MySQL or MariaDB, directly or by a name that does."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    uses: dict[str, set[str]] = defaultdict(set)
    found: set[str] = set()
    end, of_section = 0, False
    for node in ast.parse(text).body:
        above = "\n".join(lines[end : node.lineno - 1])
        end = node.end_lineno or 0
        if _SECTION in above:
            of_section = _ON_INNODB.search(above) is not None
        if isinstance(node, ast.Expr):  # the module docstring covers all tests
            of_section = _ON_INNODB.search(ast.unparse(node)) is not None
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            continue
        parts = [*ast.walk(node)]
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        used |= {part.arg for part in parts if isinstance(part, ast.arg)}  # its fixtures
        used |= {  # from usefixtures()
            part.value
            for part in parts
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        own = "\n".join([above, *lines[node.lineno - 1 : end]])
        named = of_section or _ON_INNODB.search(own) is not None
        for name in _bound(node):
            uses[name] |= used
            if named:
                found.add(name)
    while more := {name for name, used in uses.items() if name not in found and used & found}:
        found |= more
    return found


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a module's statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    else:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id


def _comparable(value: Any) -> Hashable:
    """Return the value; if it cannot be hashed, the id of the object, which its items share.

    ``callspec.indices`` differs for each item, so no two items would share a value.
    """
    try:
        hash(value)
    except Exception:  # noqa: BLE001  # some tests use keys that fail in every way
        return type(value), id(value)
    return type(value), value
