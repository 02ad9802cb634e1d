"""Each check finds its fault on a real server, and reports nothing on a correct setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import QueuePool, StaticPool

from sa_doclock import Finding, check_database, skip_redundant_rollback
from sa_doclock.tools.doctor import CHECKS, COMMON_CHECKS
from tests.integration.monitoring.steps import account
from tests.support.databases import Database
from tests.support.rows import rows

pytestmark = pytest.mark.quick


# --------------------------------------------------------------------------------------------------
# Engines with a faulty connection setting, and engines with the right one.

ALL = ("postgresql", "mysql", "mariadb", "sqlite")
SERVERS = ALL[:3]
INNODB = ("mysql", "mariadb")

Options = Mapping[str, Any]


class Case(NamedTuple):
    """A check by its code, with engine options that have the fault, and options that do not."""

    code: str
    databases: tuple[str, ...]
    fault: Options
    healthy: Options


def _postgresql(code: str, setting: str, fault: str, healthy: str) -> Case:
    options = [{"connect_args": {"options": f"-c {setting}={value}"}} for value in (fault, healthy)]
    return Case(code, ("postgresql",), *options)


def _session(code: str, databases: tuple[str, ...], setting: str, fault: int, healthy: int) -> Case:
    """Return a case for a variable of MySQL or MariaDB that each session can set."""
    words = [f"SET SESSION {setting} = {value}" for value in (fault, healthy)]
    options = [{"connect_args": {"init_command": one}} for one in words]
    return Case(code, databases, *options)


def _sqlite(code: str, pragma: str, fault: str, healthy: str) -> Case:
    events = [
        {"pool_events": [(_sets(f"PRAGMA {pragma} = {value}"), "connect")]}
        for value in (fault, healthy)
    ]
    return Case(code, ("sqlite",), *events)


def _sets(statement: str) -> Any:
    def connect(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.execute(statement)

    return connect


CASES = (
    Case("autocommit", SERVERS, {"isolation_level": "AUTOCOMMIT"}, {}),
    Case(
        "isolation-level",
        SERVERS,
        {"isolation_level": "SERIALIZABLE"},
        {"isolation_level": "READ COMMITTED"},
    ),
    Case("pool-reset", ALL, {"pool_reset_on_return": None}, {}),
    Case("pool-without-limit", ALL, {"poolclass": QueuePool, "max_overflow": -1}, {}),
    Case("pool-too-large", SERVERS, {"pool_size": 200_000}, {"pool_size": 5}),
    _postgresql("postgresql-idle-limit", "idle_in_transaction_session_timeout", "0", "60s"),
    _postgresql("postgresql-lock-timeout", "lock_timeout", "0", "30s"),
    _postgresql("postgresql-deadlock-timeout", "deadlock_timeout", "60s", "1s"),
    _postgresql("postgresql-read-only", "default_transaction_read_only", "on", "off"),
    _postgresql("postgresql-track-activities", "track_activities", "off", "on"),
    _postgresql("postgresql-log-lock-waits", "log_lock_waits", "off", "on"),
    _session("innodb-lock-wait-timeout", INNODB, "innodb_lock_wait_timeout", 1000, 50),
    _session("innodb-table-lock-timeout", INNODB, "lock_wait_timeout", 86400, 60),
    _session("mysql-idle-limit", ("mysql",), "wait_timeout", 28800, 600),
    _session("mariadb-idle-limit", ("mariadb",), "idle_transaction_timeout", 0, 60),
    _sqlite("sqlite-synchronous", "synchronous", "OFF", "NORMAL"),
    _sqlite("sqlite-foreign-keys", "foreign_keys", "OFF", "ON"),
    _sqlite("sqlite-read-only", "query_only", "ON", "OFF"),
    Case(
        "sqlite-busy-timeout",
        ("sqlite",),
        {"connect_args": {"timeout": 0}},
        {"connect_args": {"timeout": 5}},
    ),
    Case("sqlite-shared-connection", ("sqlite",), {"poolclass": StaticPool}, {}),
)

#: Global variables: the faulty value, and a correct one.
GLOBAL = {
    "innodb-deadlock-detection": ("innodb_deadlock_detect", "OFF", "ON"),
    "innodb-log-deadlocks": ("innodb_print_all_deadlocks", "OFF", "ON"),
    "innodb-read-only": ("read_only", "ON", "OFF"),
}


def engine_of(url: str, options: Options) -> sa.Engine:
    return sa.create_engine(url, **options)


# --------------------------------------------------------------------------------------------------
# Each check finds its fault on a real server, and reports nothing on a correct one.

Codes = Callable[[Options], set[str]]


def codes_of(found: list[Finding]) -> set[str]:
    return {finding.code for finding in found}


@pytest.fixture
def codes(database: Database) -> Iterator[Codes]:
    """Return a function that checks the database through an engine with these options."""
    engines: list[sa.Engine] = []

    def check(options: Options) -> set[str]:
        engines.append(sa.create_engine(database.url, **options))
        return codes_of(check_database(engines[-1]))

    yield check
    for engine in engines:
        engine.dispose()


def cases(*databases: str) -> pytest.MarkDecorator:
    """Return the cases for exactly these databases."""
    found = [case for case in CASES if case.databases == databases]
    return pytest.mark.parametrize("case", found, ids=[case.code for case in found])


def assert_distinguished(codes: Codes, case: Case) -> None:
    assert case.code in codes(case.fault)
    assert case.code not in codes(case.healthy)


@cases(*ALL)
def test_an_engine(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.not_databases("sqlite")
@cases(*SERVERS)
def test_an_engine_of_a_server(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.databases("mysql", "mariadb")
@cases(*INNODB)
def test_a_variable_of_an_innodb_session(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.databases("postgresql")
@cases("postgresql")
def test_a_setting_of_postgresql(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.databases("mysql")
@cases("mysql")
def test_a_setting_of_mysql(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.databases("mariadb")
@cases("mariadb")
def test_a_setting_of_mariadb(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.databases("sqlite")
@cases("sqlite")
def test_a_setting_of_sqlite(codes: Codes, case: Case) -> None:
    assert_distinguished(codes, case)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("code", GLOBAL)
def test_a_variable_of_the_server(database: Database, codes: Codes, code: str) -> None:
    name, fault, healthy = GLOBAL[code]
    with database.observer().connect() as connection:
        before = connection.exec_driver_sql(f"SELECT @@GLOBAL.{name}").scalar_one()
        try:
            connection.exec_driver_sql(f"SET GLOBAL {name} = {fault}")
            assert code in codes({})
            connection.exec_driver_sql(f"SET GLOBAL {name} = {healthy}")
            assert code not in codes({})
        finally:
            connection.exec_driver_sql(f"SET GLOBAL {name} = {before}")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_what_the_account_may_not_see(database: Database, codes: Codes) -> None:
    code = "postgresql-statistics-privilege" if database.name == "postgresql" else "waits-privilege"
    assert code not in codes({})
    with account(database) as url:
        engine = sa.create_engine(url)
        (found,) = (one for one in check_database(engine) if one.code == code)
        engine.dispose()
        assert "doclock_poor" in found.cure
        with database.observer().connect() as connection:
            for statement in filter(None, found.cure.split(";")):
                connection.execute(sa.text(statement))
        engine = sa.create_engine(url)
        assert code not in codes_of(check_database(engine))
        engine.dispose()


@pytest.mark.databases("mysql", "mariadb")
def test_a_pool_that_skips_the_redundant_rollback_is_no_fault(codes: Codes) -> None:
    assert "pool-reset" not in codes(skip_redundant_rollback())


@pytest.mark.databases("sqlite")
def test_the_journal_mode(database: Database, codes: Codes) -> None:
    in_wal = database.column == "sqlite"
    assert ("sqlite-journal-mode" in codes({})) is not in_wal
    if in_wal:
        with database.observer().connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = DELETE")
        assert "sqlite-journal-mode" in codes({})


@pytest.mark.databases("sqlite")
def test_a_version_of_sqlite_that_can_corrupt_a_file_in_wal_mode(
    database: Database, codes: Codes, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_wal = database.column == "sqlite"
    for fixed, found in (((99,), in_wal), ((3,), False)):
        monkeypatch.setattr("sa_doclock.tools.doctor.sqlite._WAL_FIXED", fixed)
        monkeypatch.setattr("sa_doclock.tools.doctor.sqlite._WAL_BACKPORTS", ())
        assert ("sqlite-version" in codes({})) is found


@pytest.mark.databases("sqlite")
def test_a_version_of_sqlite_older_than_those_tested(
    codes: Codes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_doclock.tools.doctor.sqlite._WAL_FIXED", (3,))
    for oldest, found in (((99,), True), ((3,), False)):
        monkeypatch.setattr("sa_doclock.tools.doctor.sqlite._OLDEST", oldest)
        assert ("sqlite-version" in codes({})) is found


@pytest.mark.databases("sqlite")
def test_a_file_that_is_opened_read_only(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.touch()
    for mode, found in (("ro", True), ("rw", False)):
        engine = sa.create_engine(f"sqlite:///file:{path}?mode={mode}&uri=true")
        assert ("sqlite-read-only" in codes_of(check_database(engine))) is found
        engine.dispose()


def test_no_check_fails_by_itself(codes: Codes) -> None:
    assert "not-checked" not in codes({})


def test_the_worst_comes_first(database: Database) -> None:
    engine = database.engine(pool_reset_on_return=None)
    ranks = [("error", "warning", "info").index(one.severity) for one in check_database(engine)]
    assert ranks == sorted(ranks)


def test_the_pool_has_all_its_connections_back_and_they_are_as_before(database: Database) -> None:
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=2)
    check_database(engine)
    with engine.connect() as connection:
        assert not connection.in_transaction()
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


CHECKED = {*COMMON_CHECKS, *(one for checks in CHECKS.values() for one in checks)}
TESTS = Path(__file__).parents[2]


def test_there_are_at_least_25_checks_with_codes_of_their_own() -> None:
    assert len({one.code for one in CHECKED}) == len(CHECKED) >= 25


@rows("code", sorted(one.code for one in CHECKED))
def test_a_check_has_a_test(code: str) -> None:
    files = [
        *Path(__file__).parent.glob("*.py"),
        *(TESTS / "integration" / "poolers").glob("*.py"),
        *(TESTS / "sql" / name for name in ("test_doctor.py", "test_compatible_servers.py")),
    ]
    assert any(f'"{code}"' in file.read_text(encoding="utf-8") for file in files)
