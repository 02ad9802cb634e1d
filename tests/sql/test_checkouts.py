"""The statements of check-outs, as each database receives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from sa_doclock import LockingSession, LockNotSupported, LockOptions, checkout_table, explain_lock
from sa_doclock.dialects import strategy_classes
from sa_doclock.features.checkouts.key_texts import DocumentName
from sa_doclock.features.checkouts.table_rows import CheckoutRow, CheckoutRows
from sa_doclock.tools.explain import without_lock
from tests.sql.models import Order
from tests.sql.servers import DATABASES, serving

pytestmark = pytest.mark.each_value

SHARED = LockOptions.SharedRead


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
    """Yield the statements that reading and changing one check-out sends to this database."""
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


# --------------------------------------------------------------------------------------------------
# explain_lock() on scripted servers reports everything a session sends its driver, never a lock.

FOR_UPDATE = LockOptions.ForUpdate
LOCK_WORDS = ("FOR UPDATE", "FOR SHARE", "FOR NO KEY", "SHARE MODE", "UPDLOCK", "IMMEDIATE")
METHODS = ("(", "SELECT CURRENT_TRANSACTION_ID()")


@pytest.mark.parametrize("database_name", [one for one in DATABASES if one != "mysql-5.7"])
@pytest.mark.parametrize(
    ("lock", "seconds"),
    [
        *((lock, seconds) for lock in (FOR_UPDATE, SHARED) for seconds in (None, 0.3)),
        (FOR_UPDATE | LockOptions.NoWait, None),
    ],
    ids=str,
)
def test_the_statements_are_all_that_the_driver_gets(
    monkeypatch: pytest.MonkeyPatch, database_name: str, seconds: float | None, lock: LockOptions
) -> None:
    # Use the script itself: a copy of the engine would use an installed psycopg.
    monkeypatch.setattr("sa_doclock.tools.explain.side_engine", nullcontext)
    with serving(database_name) as (engine, script):
        received = explain_lock(engine, Order, lock, lock_timeout=seconds)
        asked = list(script.sent)
        for _ in range(2):
            script.sent.clear()
            with LockingSession(engine) as session:
                session.get_document(Order, 1, lock, lock_timeout=seconds)
                sent = [" ".join(one.partition("  -- ")[0].split()) for one in script.sent]
    if database_name != "sqlite":
        assert not [one for one in asked if any(word in one for word in LOCK_WORDS)]
    expected = [one for one in sent if not one.startswith("(")]
    if database_name == "postgresql" and seconds is not None:  # the text contains the values
        expected[0] = expected[0].replace("%s", "'300ms'", 1).replace("%s", "'330ms'")
    assert [one for one in received.statements if not one.startswith("SET TRANSACTION")] == [
        one for one in expected if not one.startswith("SET TRANSACTION")
    ]


@pytest.mark.parametrize(
    ("statement", "sent"),
    [
        ("SELECT 1 FROM a WHERE b = 1 FOR UPDATE", "SELECT 1 FROM a WHERE b = 1"),
        ("SELECT 1 FROM a \nFOR UPDATE OF a, b NOWAIT", "SELECT 1 FROM a"),
        ("SELECT 1 FROM a FOR NO KEY UPDATE OF a SKIP LOCKED", "SELECT 1 FROM a"),
        ("SELECT 1 FROM a FOR SHARE OF a", "SELECT 1 FROM a"),
        ("SELECT 1 FROM a LOCK IN SHARE MODE WAIT 1", "SELECT 1 FROM a"),
        (
            "SELECT 1 FROM a WITH (UPDLOCK, ROWLOCK, FORCESEEK) WHERE b = 1",
            "SELECT 1 FROM a WITH (NOLOCK) WHERE b = 1",
        ),
        ("BEGIN IMMEDIATE", "BEGIN"),
    ],
)
def test_a_lock_is_taken_out(statement: str, sent: str) -> None:
    assert without_lock(statement) == sent


@pytest.mark.parametrize("statement", ["SELECT for_update FROM a", "BEGIN", "PRAGMA busy_timeout"])
def test_a_statement_without_a_lock_stays_as_it_is(statement: str) -> None:
    assert without_lock(statement) == statement


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 FROM a FOR UPDATE LIMIT 1",
        "SELECT GET_LOCK('a', 1)",
        "SELECT pg_advisory_xact_lock(1)",
        "UPDATE a SET b = 1",
        "LOCK TABLE a",
    ],
)
def test_a_lock_that_cannot_be_taken_out_is_not_sent(statement: str) -> None:
    with pytest.raises(LockNotSupported, match="cannot remove the lock"):
        without_lock(statement)
