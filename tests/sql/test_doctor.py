"""The checks on a scripted server. Checks of tables are missing: a script cannot answer reflection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine

from sa_doclock import Finding
from sa_doclock.dialects import strategies, strategy_for
from sa_doclock.dialects.base import Cluster
from sa_doclock.dialects.innodb import InnoDBMonitoring
from sa_doclock.dialects.postgresql.monitoring import PostgreSQLMonitoring
from sa_doclock.tools.doctor import (
    CHECKS,
    checkouts,
    checks_for,
    checks_in,
    findings_of,
    headers_of,
    models,
    postgresql_poolers,
)
from sa_doclock.tools.doctor.check import Subject
from sa_doclock.tools.doctor.sqlite import corrupts_wal
from tests.sql import servers
from tests.sql.driver import PsycopgConnection, Script
from tests.sql.models import Base
from tests.sql.native import odbc18
from tests.sql.servers import mysql, serving
from tests.support.rows import rows


def check_scripted(engine: Engine) -> list[Finding]:
    """Check the server, with mapped classes."""
    strategy = strategy_for(engine)
    with engine.connect() as connection:
        subject = Subject(engine, connection, strategy, headers_of(Base))
        of_tables = checks_in(models, checkouts)
        checks = [check for check in checks_for(strategy) if check not in of_tables]
        return [finding for check in checks for finding in findings_of(check, subject)]


# --------------------------------------------------------------------------------------------------
# Checks whose faults no test server has: a scripted server gives the faulty and the correct answer.
#
# A standby, another product, an old version, a pooler, a cluster, settings read from a server's
# configuration at startup; and all checks of SQL Server, which no test has run on a real one.

Connect = Callable[[Script], Engine]


class Case(NamedTuple):
    """A check, and the answers to some of its questions: with the fault, and without."""

    code: str
    database: str
    mark: str
    fault: Any
    healthy: Any


def variables(name: str, value: str, **more: str) -> list[tuple[str, str]]:
    return [(name, value), *more.items()]


CASES = (
    Case("postgresql-standby", "postgresql", "SELECT pg_is_in_recovery()", True, False),
    Case(
        "postgresql-compatible",
        "postgresql",
        "pg_catalog.version()",
        "PostgreSQL 11.2-YB-2.19.0.0-b0 on x86_64-pc-linux-gnu",
        "PostgreSQL 18.4 on x86_64-pc-linux-gnu",
    ),
    Case(
        "postgresql-prepared-transactions",
        "postgresql",
        "pg_prepared_xacts",
        [("it's", "app", 99)],
        [],
    ),
    Case(
        "innodb-rollback-on-timeout",
        "mysql",
        "SHOW VARIABLES",
        *(variables("innodb_rollback_on_timeout", one) for one in ("ON", "OFF")),
    ),
    Case(
        "innodb-rollback-on-timeout",
        "mariadb",
        "SHOW VARIABLES",
        *(variables("innodb_rollback_on_timeout", one) for one in ("ON", "OFF")),
    ),
    Case(
        "innodb-binlog-format",
        "mysql",
        "SHOW VARIABLES",
        *(variables("binlog_format", one, log_bin="ON") for one in ("STATEMENT", "ROW")),
    ),
    Case(
        "innodb-binlog-format",
        "mariadb",
        "SHOW VARIABLES",
        *(variables("binlog_format", "STATEMENT", log_bin=one) for one in ("ON", "OFF")),
    ),
    Case(
        "innodb-compatible",
        "mysql",
        "innodb_rollback_on_timeout",
        *(
            variables("version_comment", one)
            for one in ("(ProxySQL)", "MySQL Community Server - GPL")
        ),
    ),
    Case(
        "mysql-performance-schema",
        "mysql",
        "SHOW VARIABLES",
        *(variables("performance_schema", one) for one in ("OFF", "ON")),
    ),
    Case("mssql-snapshot-isolation", "mssql", "SELECT snapshot_isolation_state", 0, 1),
    Case("mssql-read-committed-snapshot", "mssql", "SELECT is_read_committed_snapshot_on", 0, 1),
    Case("mssql-read-only", "mssql", "'Updateability'", "READ_ONLY", "READ_WRITE"),
    Case("mssql-lock-timeout", "mssql", "SELECT @@LOCK_TIMEOUT", -1, 30_000),
    Case("mssql-row-locks", "mssql", "allow_row_locks = 0", 1, 0),
    Case("mssql-lock-escalation", "mssql", "SELECT lock_escalation", 0, 1),
    Case("pool-too-large", "mssql", "SELECT @@MAX_CONNECTIONS", 10, 32_767),
)


def codes(engine: Engine) -> set[str]:
    return {one.code for one in check_scripted(engine)}


@rows("case", CASES, ids=[f"{one.code}-{one.database}" for one in CASES])
def test_a_fault_is_found_and_none_where_there_is_none(case: Case) -> None:
    for answer, found in ((case.fault, True), (case.healthy, False)):
        with serving(case.database) as (engine, script):
            script.handshake = {case.mark: 0, **script.handshake, case.mark: answer}
            del strategies[engine.dialect]  # so that the server has to identify itself again
            assert (case.code in codes(engine)) is found


def postgresql(version: str) -> Connect:
    def connected(script: Script) -> Engine:
        engine = servers.postgresql(script)
        script.handshake = {
            **script.handshake,
            "pg_catalog.version()": f"PostgreSQL {version} on x86",
        }
        return engine

    return connected


def mssql(version: str) -> Connect:
    def connected(script: Script) -> Engine:
        engine = servers.pyodbc(script)
        script.handshake = {**script.handshake, "ProductVersion": version}
        return engine

    return connected


@pytest.mark.parametrize(
    ("code", "product", "old", "new"),
    [
        ("postgresql-version", "postgresql", postgresql("11.22"), postgresql("12.0")),
        ("postgresql-version", "postgresql", postgresql("14.3"), postgresql("14.4")),
        ("mysql-version", "mysql", mysql("5.7.44"), mysql("8.4.0")),
        ("mariadb-version", "mariadb", mysql("10.5.9-MariaDB"), mysql("10.6.0-MariaDB")),
        ("mssql-version", "mssql", mssql("12.0.6024.0"), mssql("13.0.1601.5")),
    ],
)
def test_a_version(code: str, product: str, old: Connect, new: Connect) -> None:
    for connect, found in ((old, True), (new, False)):
        with serving(product, connect) as (engine, _):
            assert (code in codes(engine)) is found


@pytest.fixture
def _another_connection_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the pooler checks a second connection from the pool: no script has another connection."""
    monkeypatch.setattr(postgresql_poolers, "side_connection", lambda engine, _: engine.connect())


@pytest.mark.parametrize(
    ("product", "monitoring", "query"),
    [
        ("postgresql", PostgreSQLMonitoring, "SELECT pg_backend_pid()"),
        ("mysql", InnoDBMonitoring, "SELECT CONNECTION_ID()"),
        ("mariadb", InnoDBMonitoring, "SELECT CONNECTION_ID()"),
    ],
)
@pytest.mark.usefixtures("_another_connection_of_the_script")
def test_a_pooler_is_seen_by_the_id_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, product: str, monitoring: type[Any], query: str
) -> None:
    monkeypatch.setattr(monitoring, "connection_id", lambda *_: 4711)
    for answer, found in ((99, True), (4711, False)):
        with serving(product) as (engine, script):
            script.handshake = {query: answer, **script.handshake}
            assert ("pooler" in codes(engine)) is found


@pytest.mark.usefixtures("_another_connection_of_the_script")
def test_statements_that_psycopg_prepares_behind_a_pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgreSQLMonitoring, "connection_id", lambda *_: 4711)
    for threshold, pid, found in ((5, 99, True), (None, 99, False), (5, 4711, False)):
        monkeypatch.setattr(PsycopgConnection, "prepare_threshold", threshold, raising=False)
        with serving("postgresql") as (engine, script):
            script.handshake = {"SELECT pg_backend_pid()": pid, **script.handshake}
            assert ("postgresql-prepared-statements" in codes(engine)) is found


@pytest.mark.usefixtures("_another_connection_of_the_script")
@pytest.mark.parametrize(
    ("standbys", "reads", "limits", "found"),
    [
        (1, "A", "A", set()),
        (0, "B", "B", set()),  # nothing to look for
        (1, "B", "A", {"postgresql-standby-under-lock", "postgresql-standby-reads"}),
        (1, "A", "B", {"postgresql-standby-under-lock"}),
    ],
)
def test_statements_that_a_pooler_sends_to_a_standby(
    standbys: int, reads: str, limits: str, found: set[str]
) -> None:
    with serving("postgresql") as (engine, script):
        answers = {
            "pg_stat_replication": standbys,
            "FOR UPDATE": "A",
            "set_config": limits,
            "pg_postmaster_start_time": reads,
        }
        script.handshake = {**answers, **script.handshake, **answers}
        seen = [one.code for one in check_scripted(engine) if "-standby-" in one.code]
    assert sorted(seen) == sorted(found)


@pytest.mark.parametrize("warning", [None, "a Galera cluster"])
def test_a_node_of_a_cluster(warning: str | None) -> None:
    with serving("mariadb") as (engine, _):
        strategy_for(engine).cluster = Cluster(warning)
        assert ("cluster" in codes(engine)) is (warning is not None)


def test_an_account_of_sql_server_that_may_not_see_waits() -> None:
    with serving("mssql") as (engine, script):
        assert "waits-privilege" not in codes(engine)
        script.failures.append(("sys.dm_os_waiting_tasks", odbc18(300)))
        (found,) = (one for one in check_scripted(engine) if one.code == "waits-privilege")
        assert found.cure.startswith("GRANT VIEW SERVER STATE TO ")


def test_a_check_that_fails_is_reported_and_stops_no_other() -> None:
    with serving("mssql") as (engine, script):
        script.failures.append(("snapshot_isolation_state", odbc18(300)))
        script.handshake = {"'Updateability'": "READ_ONLY", **script.handshake}
        found = {one.code: one for one in check_scripted(engine)}
    assert "mssql-read-only" in found
    assert "the check mssql-snapshot-isolation has failed" in found["not-checked"].text


@pytest.mark.parametrize(
    ("version", "corrupts"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((4, 0, 0), False),
    ],
)
def test_the_versions_of_sqlite_that_can_corrupt_a_file(
    version: tuple[int, ...], corrupts: bool
) -> None:
    assert corrupts_wal(version) is corrupts


def test_the_scripted_checks_are_those_of_their_databases() -> None:
    known = {check.code for checks in CHECKS.values() for check in checks}
    assert {case.code for case in CASES} <= known | {"pool-too-large"}
