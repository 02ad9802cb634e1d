"""The drivers send the texts of the golden files, and these are valid T-SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote_plus

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from lab.servers import Missing, Server, find_servers, url_variable
from lab.servers.mssql import prepare
from lab.tds.drivers import pyodbc
from lab.tds.model import OFF, ON
from lab.tds.server import TDSServer, said, wrong
from lab.tsql.checker import Checker
from lab.tsql.texts import METHODS, with_parameters
from sa_doclock import DocLockError, LockingSession
from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from tests.sql.scenarios import SCENARIOS, Act, sent_by
from tests.sql.servers import serving, take_first_lock

_PARAMETERS = re.compile(r"  -- .*$", re.DOTALL)
_OWN_LABEL = re.compile(r"\b(\w+)\.(\w+) AS \1_\2\b")  # Session.get() of SQLAlchemy 2.0


def play(act: Act, engine: Engine, wire: TDSServer) -> list[str]:
    """Run an action in a session and close it; return the SQL from the wire."""
    take_first_lock(engine)
    wire.sent.clear()
    with LockingSession(engine) as session:
        try:
            act(session)
        except DocLockError as error:
            return [*_sql(wire), f"-- raises {type(error).__name__}"]
    return _sql(wire)


@pytest.mark.each_value
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_driver_sends_what_it_is_given_within_a_transaction(
    engine: Engine, wire: TDSServer, name: str
) -> None:
    with serving("mssql") as (scripted, script):
        expected = [_as_sent(line) for line in sent_by(SCENARIOS[name], scripted, script)]
    assert play(SCENARIOS[name], engine, wire) == [sql for sql in expected if sql not in METHODS]
    assert [sent for sent in wire.sent if sent.text and not sent.in_transaction] == []


def test_the_parser_is_asked_about_all_that_was_seen(
    engine: Engine, wire: TDSServer, parser: Checker | None
) -> None:
    if parser is None:
        pytest.skip("no T-SQL parser")
    misspelt = "SELECT t.a FROM t WITH (UPDLOK)"
    with engine.connect() as connection:
        connection.exec_driver_sql(misspelt)
    wire.sent.clear()
    assert list(wrong(wire, parser)) == [misspelt]
    wire.seen.remove(misspelt)  # otherwise this test fails at its end


def _sql(wire: TDSServer) -> list[str]:
    return [_OWN_LABEL.sub(r"\1.\2", sent.text) for sent in wire.sent if sent.text]


def _as_sent(line: str) -> str:
    if line.startswith("-- raises"):
        return line
    return " ".join(with_parameters(_PARAMETERS.sub("", line)).split())


# --------------------------------------------------------------------------------------------------
# The first steps of the suite with a SQL Server URL, over both drivers.

ALTER = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION"


@pytest.fixture
def url(connection_string: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the suite the URL of the wire, in place of a user's server."""
    url = f"mssql+pyodbc:///?odbc_connect={quote_plus(connection_string)}"
    monkeypatch.setenv(url_variable("mssql"), url)
    return url


def test_the_migration_runs_first_and_is_recorded(url: str, wire: TDSServer) -> None:
    wire.database.snapshot = OFF
    found = find_servers(["mssql"])["mssql"]
    assert isinstance(found, Server)
    assert (found.url, found.origin) == (url, "SA_DOCLOCK_TEST_MSSQL_URL")
    assert wire.database.snapshot == ON
    (altered,) = said(wire, ALTER)
    assert not altered.in_transaction
    (recorded,) = said(wire, "INSERT INTO sa_doclock_version")
    assert recorded.in_transaction
    assert not pyodbc().pooling


def test_it_changes_nothing_where_it_has_run(url: str, wire: TDSServer) -> None:
    prepare(url)
    assert said(wire, ALTER) == []


@pytest.mark.usefixtures("url")
def test_a_migration_that_fails_is_reported(wire: TDSServer) -> None:
    wire.database.snapshot = OFF
    wire.database.failures.append((ALTER, 5011))
    found = find_servers(["mssql"])["mssql"]
    assert isinstance(found, Missing)
    assert "the migration has failed" in found.reason
    assert "(5011)" in found.reason


# --------------------------------------------------------------------------------------------------
# ALTER DATABASE runs outside a transaction.


@contextmanager
def migrating(engine: Engine) -> Iterator[Operations]:
    """Yield Alembic's ``op`` in the transaction that env.py would begin."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with context.begin_transaction():
            yield Operations(context)


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [(EnableSnapshotIsolationOp, OFF, ON), (DisableSnapshotIsolationOp, ON, OFF)],
)
def test_it_is_sent_outside_of_any_transaction(
    engine: Engine,
    wire: TDSServer,
    operation: type[EnableSnapshotIsolationOp | DisableSnapshotIsolationOp],
    before: int,
    after: int,
) -> None:
    wire.database.snapshot = before
    with migrating(engine) as op:
        op.invoke(operation())
        op.execute("UPDATE shop_order SET total = 0")
    assert wire.database.snapshot == after
    (sent,) = said(wire, ALTER)
    assert not sent.in_transaction
    (update,) = said(wire, "UPDATE shop_order")
    assert update.in_transaction  # the next statement runs in a transaction again


def test_within_one_it_would_be_refused(engine: Engine, wire: TDSServer) -> None:
    wire.database.snapshot = OFF
    with engine.connect() as connection, pytest.raises(DBAPIError, match=r"\(226\)"):
        connection.execute(text(f"{ALTER} ON"))
    assert wire.database.snapshot == OFF
