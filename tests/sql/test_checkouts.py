"""The statements of check-outs, as each database gets them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from sa_doclock import checkout_table
from sa_doclock.dialects import strategy_classes
from sa_doclock.features.checkouts.keys import DocumentName
from sa_doclock.features.checkouts.rows import CheckoutRow, CheckoutRows

TABLE = checkout_table(sa.MetaData(), "held", "sales")
NAME = DocumentName("orders", "1", "0123")
NOON = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)
ROW = CheckoutRow(NOON, NAME.id, "ann", 1, NOON, NOON, 900_000, None)

_CLASSES: dict[str, Any] = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "mssql": mssql.dialect,
    "sqlite": sqlite.dialect,
}
DIALECTS: dict[str, Dialect] = {name: kind(paramstyle="qmark") for name, kind in _CLASSES.items()}
NOW = {
    "postgresql": "clock_timestamp() AT TIME ZONE 'UTC'",
    "mysql": "UTC_TIMESTAMP(6)",
    "mssql": "CAST(SYSUTCDATETIME() AS DATETIME2(6))",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'",
}


def texts(name: str, *, latest: bool = False) -> Iterator[str]:
    """Yield what the reads and changes of one check-out send to this database."""
    dialect, sent = DIALECTS[name], list[Any]()

    def execute(statement: Any, *_: Any) -> Any:
        sent.append(statement)
        return SimpleNamespace(rowcount=1, one_or_none=ROW.__dict__.values, all=list)

    rows: Any = object.__new__(CheckoutRows)
    rows.connection, rows._table, rows._latest = SimpleNamespace(execute=execute), TABLE, latest
    rows._clock = strategy_classes()[name].clock
    rows.read_one(NAME)
    rows.insert(NAME, {"owner": "ann", "epoch": 1, "since": NOON, "until": NOON, "lease": 1})
    rows.change(ROW, {"until": NOON})
    rows.change_open(NAME, 1, {"until": None})
    rows.select_open(["orders"], "ann", expired=False)
    for statement in sent:
        yield " ".join(str(statement.compile(dialect=dialect)).split())


@pytest.mark.parametrize("name", DIALECTS)
def test_the_time_is_that_of_the_database(name: str) -> None:
    read, _, change, _, listed = texts(name)
    now = NOW[name].replace("%", "%%") if "%%" in read else NOW[name]
    assert read.replace("[", "").replace("]", "").startswith("SELECT doclock_time.now AS now, ")
    assert f"FROM (SELECT {now} AS now) AS doclock_time LEFT OUTER JOIN sales.held ON" in read
    assert listed.startswith(f"SELECT {now} AS now")
    assert f".until > {now}" in listed
    assert "until = " in change
    assert now not in change


@pytest.mark.parametrize(("name", "end"), [("mysql", "FOR UPDATE"), ("mssql", "")])
def test_a_read_that_shows_what_was_committed_last(name: str, end: str) -> None:
    read, *_ = texts(name, latest=True)
    assert read.endswith(end)


def test_the_whole_read_of_sql_server() -> None:
    read, insert, change, end, _ = texts("mssql")
    assert read == (
        "SELECT doclock_time.now AS now, sales.held.id, sales.held.owner, sales.held.epoch, "
        "sales.held.since, sales.held.until, sales.held.lease, sales.held.note FROM (SELECT "
        "CAST(SYSUTCDATETIME() AS DATETIME2(6)) AS now) AS doclock_time LEFT OUTER JOIN sales.held "
        "ON sales.held.id = ?"
    )
    assert insert.startswith("INSERT INTO sales.held (id, document, ident, owner, epoch, since")
    assert change.startswith("UPDATE sales.held SET until=")
    assert end.startswith("UPDATE sales.held SET until=")
