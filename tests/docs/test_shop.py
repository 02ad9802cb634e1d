"""examples/shop: its own tests, and its load with kills, on each database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.programs import run_python
from tests.support.databases import Database

TABLES = ("mails", "payments", "number_ranges", "order_lines", "orders", "items", "alembic_version")
NO_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a copy of the shop that uses the database, without its tables."""
    pytest.importorskip(
        "fastapi", reason="THE SHOP DID NOT RUN: pip install fastapi uvicorn httpx alembic"
    )
    pytest.importorskip(
        "uvicorn", reason="THE SHOP DID NOT RUN: pip install fastapi uvicorn httpx alembic"
    )
    _drop_tables(database)
    monkeypatch.setenv("SHOP_URL", database.url)
    yield Path(shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop"))
    _drop_tables(database)


def _drop_tables(database: Database) -> None:
    with database.engine().begin() as connection:
        for table in TABLES:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")


@pytest.mark.slow
@pytest.mark.not_databases("mssql", "sqlite-journal", "postgresql-pipeline")
def test_its_tests(shop: Path) -> None:
    done = run_python(shop, "-m", "pytest", *NO_PLUGINS)
    assert "7 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.not_databases("mssql", "sqlite-journal", "postgresql-pipeline")
def test_its_load_with_kills(shop: Path) -> None:
    done = run_python(shop, "load.py", "--seconds", "20", "--kill-every", "4")
    assert "all is right" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("items = session.get_entities(Item, list(basket), LockOptions.ForUpdate)",
         "items = [session.get_one(Item, ident) for ident in basket]"),
        ("session.get_one_entity(Order, ident, LockOptions.ForUpdate)", "session.get_one(Order, ident)"),
    ],
    ids=["items", "order"],
)  # fmt: skip
def test_its_tests_find_a_lock_that_is_missing(shop: Path, what: str, instead: str) -> None:
    for name, old, new in (
        ("orders.py", what, instead),
        ("database.py", "class_=LockingSession,", 'class_=LockingSession, guard="off",'),
    ):
        path = shop / "shop" / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
    done = run_python(shop, "-m", "pytest", *NO_PLUGINS)
    assert " failed" in done.stdout, done.stdout + done.stderr
