"""The first steps of the suite if a URL of SQL Server is given, over both drivers."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest

from lab.servers import Missing, Server, find_servers, url_variable
from lab.servers.mssql import prepare
from tests.sql.tds.drivers import pyodbc
from tests.sql.tds.model import OFF, ON
from tests.sql.tds.server import TDSServer, said

ALTER = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION"


@pytest.fixture
def url(connection_string: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the suite the URL of the wire, as somebody gives it their server's."""
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
