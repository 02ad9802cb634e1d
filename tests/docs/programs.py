"""Runs Python in a separate folder, like a reader of the pages."""

from __future__ import annotations

import ast
import importlib.util
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tests.docs.pages import ROOT, Block
from tests.support.databases import Database
from tests.support.tracing import PACKAGE

_EMPTY: Final = "doclock_sample"


def python_environment() -> dict[str, str]:
    """Return the environment in which Python finds the sa_doclock that the tests import."""
    if PACKAGE.parent != ROOT:
        return {**os.environ}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths}


@contextmanager
def empty_database(database: Database) -> Iterator[sa.URL]:
    """Create a second, empty database; yield its URL, and drop it.

    Other tests may have left tables in the test's own database.
    """
    url = sa.make_url(database.url)
    if database.name == "sqlite":  # a file of this test alone
        yield url
        return
    with database.observer().connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {_EMPTY}")
        connection.exec_driver_sql(f"CREATE DATABASE {_EMPTY}")
        yield url.set(database=_EMPTY)
        force = " WITH (FORCE)" if database.name == "postgresql" else ""  # of a process just killed
        connection.exec_driver_sql(f"DROP DATABASE {_EMPTY}{force}")


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the folder, with the sa_doclock that the tests import."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# --------------------------------------------------------------------------------------------------
# Runs the Python samples of a page and checks their output.
#
# ``# -> text`` after an expression statement, or alone on the lines below it, is the value's
# ``repr()``, or the output of ``print()``; ``...`` matches anything.

LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "dramatiq": ("dramatiq",),
    "factory": ("factory",),
    "fastapi": ("fastapi", "httpx", "aiosqlite"),
    "flask_sqlalchemy": ("flask", "flask_sqlalchemy"),
    "flask": ("flask",),
    "opentelemetry": ("opentelemetry.sdk",),
    "prometheus_client": ("prometheus_client",),
    "litestar": ("litestar", "advanced_alchemy", "aiosqlite"),
    "sqladmin": ("sqladmin", "httpx"),
    "sqlmodel": ("sqlmodel",),
}
"""Libraries that this project does not need; what must be installed to run a sample of each."""

_MARK = "# ->"


class NotAsPromised(AssertionError):
    """A sample does not do what the page promises."""


def in_order(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks in the order to run them: each after the block that it needs."""
    blocks = list(blocks)
    named = {block.name: block for block in blocks if block.name}
    done: set[int] = set()
    for block in blocks:
        for one in (*([named[block.needs]] if block.needs else []), block):
            if one.line not in done:
                done.add(one.line)
                yield one


def libraries_of(blocks: Iterable[Block]) -> dict[Block, str | None]:
    """Return the library that each sample needs, from its imports and those of the blocks that it needs."""
    blocks = list(blocks)
    imported = {block: _library(block) for block in blocks}
    named = {block.name: imported[block] for block in blocks if block.name}
    return {block: named.get(block.needs or "") or imported[block] for block in blocks}


def _library(block: Block) -> str | None:
    names = {name.partition(".")[0] for name in _imports(ast.parse(block.text))}
    return next((name for name in LIBRARIES if name in names), None)


def missing_for(library: str) -> list[str]:
    """Return the missing packages among those that a sample of this library needs."""
    return [name for name in LIBRARIES[library] if importlib.util.find_spec(name) is None]


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run the sample.

    :raises NotAsPromised: a ``# ->`` is wrong, was not reached, or belongs to no expression.
    :raises BaseException: the sample's own error; the traceback has the page and line.
    """
    tree = ast.parse(block.text, filename=block.page)
    checks = _Checks(block)
    checks.visit(tree)
    checks.refuse_strays()
    ast.increment_lineno(tree, block.line - 1)
    ast.fix_missing_locations(tree)
    namespace["__shows__"], namespace["__prints__"] = checks.shows, checks.prints
    exec(compile(tree, block.page, "exec", dont_inherit=True), namespace)
    checks.refuse_unreached()


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


class _Checks(ast.NodeTransformer):
    """Wraps every expression that has a ``# ->`` in a call that compares."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._promises = _promises(block.text)  # by line
        self._expected: dict[int, str] = {}  # by line of the expression
        self._reached: set[int] = set()

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:  # the name that ast requires
        self.generic_visit(node)
        assert node.end_lineno is not None
        expected = self._take(node.end_lineno)
        if expected is None:
            return node
        line = node.lineno
        self._expected[line] = expected
        value = node.value
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id == "print"
        ):
            value.func.id = "__prints__"
            value.args.insert(0, ast.Constant(line))
        else:
            shows = ast.Name("__shows__", ast.Load())
            node.value = ast.Call(shows, [ast.Constant(line), value], [])
        return node

    def _take(self, line: int) -> str | None:
        if line in self._promises and not self._promises[line][0]:
            return self._promises.pop(line)[1]
        below = []
        while (line := line + 1) in self._promises and self._promises[line][0]:
            below.append(self._promises.pop(line)[1])
        return "\n".join(below) if below else None

    def shows(self, line: int, value: object) -> None:
        self._compare(line, repr(value))

    def prints(self, line: int, *values: object, **how: Any) -> None:
        printed = io.StringIO()
        print(*values, **how, file=printed)
        self._compare(line, printed.getvalue().rstrip("\n"))

    def _compare(self, line: int, got: str) -> None:
        self._reached.add(line)
        expected = self._expected[line]
        pattern = ".*".join(map(re.escape, expected.split("...")))
        if not re.fullmatch(pattern, got, re.DOTALL):
            raise NotAsPromised(f"{self._at(line)}: says {expected!r}, but it is {got!r}")

    def refuse_strays(self) -> None:
        for line in self._promises:
            raise NotAsPromised(f"{self._at(line)}: '{_MARK}' belongs to no expression")

    def refuse_unreached(self) -> None:
        for line in self._expected.keys() - self._reached:
            raise NotAsPromised(f"{self._at(line)}: was never run")

    def _at(self, line: int) -> str:
        return f"{self._block.page}:{self._block.line + line - 1}"


def _promises(text: str) -> dict[int, tuple[bool, str]]:
    """Return by line whether the ``# ->`` stands alone in it, and its text."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.string.startswith(_MARK):
            alone = not token.line[: token.start[1]].strip()
            found[token.start[0]] = (alone, token.string.removeprefix(_MARK).strip())
    return found
