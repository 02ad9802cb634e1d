"""Public names and texts at the end of a SELECT, for dialects of other packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import sqlite

from sa_doclock import LockOptions, with_lock
from sa_doclock.core.statements import add_suffixes, drop_lock
from sa_doclock.dialects import strategy_classes, suffixed
from sa_doclock.dialects.base import LockText
from sa_doclock.dialects.sqlite import SQLiteLocks, SQLiteStatements
from tests.support.models import Order

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {"sa_doclock", "sa_doclock.errors", "sa_doclock.dialects.base"}
EXAMPLES = sorted((ROOT / "examples").glob("*/src/**/*.py"))
FOR_UPDATE, NO_WAIT = LockOptions.ForUpdate, LockOptions.NoWait


class SuffixStatements(SQLiteStatements):
    texts = {  # noqa: RUF012  # LockStatements declares it ClassVar
        FOR_UPDATE: LockText(suffix="WITH LOCK"),
        FOR_UPDATE | NO_WAIT: LockText(suffix="WITH LOCK NOW"),
    }


class SuffixLocks(SQLiteLocks):
    statements = SuffixStatements()


@pytest.fixture
def suffix(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(strategy_classes(), "sqlite", SuffixLocks)
    suffixed.cache_clear()
    yield
    suffixed.cache_clear()


def modules_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def last_line(lock: LockOptions) -> str:
    return str(with_lock(select(Order), lock).compile(dialect=sqlite.dialect())).splitlines()[-1]


def test_an_example_uses_public_names_alone() -> None:
    assert EXAMPLES
    used = {name for path in EXAMPLES for name in modules_imported(path)}
    ours = {name for name in used if name.partition(".")[0] == "sa_doclock"}
    assert "sa_doclock.dialects.base" in ours
    assert ours <= PUBLIC


@pytest.mark.usefixtures("suffix")
def test_a_suffix_is_the_end_of_the_select_that_locks() -> None:
    assert last_line(FOR_UPDATE).endswith("WITH LOCK")
    assert last_line(FOR_UPDATE | LockOptions.NoKey).endswith("WITH LOCK")
    assert last_line(FOR_UPDATE | NO_WAIT).endswith("WITH LOCK NOW")
    assert "WITH LOCK" not in last_line(LockOptions.SharedRead)


@pytest.mark.usefixtures("suffix")
def test_another_lock_replaces_the_suffix() -> None:
    locked = with_lock(select(Order), FOR_UPDATE)
    again = add_suffixes(locked, FOR_UPDATE | NO_WAIT)
    assert str(again.compile(dialect=sqlite.dialect())).count("WITH LOCK") == 1
    assert "WITH LOCK" not in str(drop_lock(locked, Order).compile(dialect=sqlite.dialect()))


def test_no_other_dialect_gets_a_suffix() -> None:
    assert "WITH LOCK" not in last_line(FOR_UPDATE)
