"""Products that answer as PostgreSQL, MySQL or SQL Server: scripted servers with the texts of their versions.

These tests run no product.  They check the statements sent to each, and the refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import OperationalError

from sa_doclock import (
    LockingSession,
    LockNotSupported,
    LockOptions,
    check_database,
    lock_waits,
)
from sa_doclock.dialects import (
    COMPATIBLE_SERVERS,
    LockFeature,
    find_server,
    strategies,
    strategy_for,
)
from sa_doclock.tools import doctor, monitoring
from tests.docs.compatible import DOCUMENTED, NOTES, RUN
from tests.sql import servers
from tests.sql.driver import PsycopgConnection, Script
from tests.sql.models import Base, Order
from tests.sql.servers import mysql, serving
from tests.sql.test_doctor import check_scripted
from tests.support.rows import rows

Act = Callable[[LockingSession], object]

COCKROACH = "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)"
YUGABYTE = "PostgreSQL 11.2-YB-2.20.1.3-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6"
YUGABYTE_2025 = "PostgreSQL 15.12-YB-2025.1.0.1-b3 on x86_64-pc-linux-gnu"
REDSHIFT = (
    "PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017 "
    "(Red Hat 3.4.2-6.fc3), Redshift 1.0.12103"
)
ORIGINAL = "PostgreSQL 18.4 on x86_64-pc-linux-gnu"
DSQL = "abc123.dsql.us-east-1.on.aws"


def postgresql(version: str, host: str = "") -> Callable[[Script], Engine]:
    def connect(script: Script) -> Engine:
        engine = servers.postgresql(script)
        script.handshake = {**script.handshake, "pg_catalog.version()": version}
        if not host:
            return engine
        return create_engine(
            f"postgresql+psycopg://{host}/shop",
            creator=lambda: PsycopgConnection(script),
            use_native_hstore=False,
        )

    return connect


def mssql(version: str, edition: int, babelfish: int | None) -> Callable[[Script], Engine]:
    def connect(script: Script) -> Engine:
        engine = servers.pyodbc(script)
        script.handshake = {
            **script.handshake,
            "EngineEdition": (version, edition, babelfish),
            "SELECT @@VERSION": version,
        }
        return engine

    return connect


@contextmanager
def session_on(version: str, host: str = "") -> Iterator[tuple[LockingSession, Script]]:
    answers_as_postgresql = version.startswith(("PostgreSQL", "CockroachDB"))
    name = "postgresql" if answers_as_postgresql else "mysql"
    connect = postgresql(version, host) if answers_as_postgresql else mysql(version)
    with serving(name, connect) as (engine, script), LockingSession(engine) as session:
        yield session, script


def takes(lock: LockOptions, lock_timeout: float | None = None) -> Act:
    if LockOptions.SkipLocked in lock:
        return lambda session: session.scalars(session.entity_set(Order, lock)).all()
    return lambda session: session.get_entity(Order, 1, lock, lock_timeout=lock_timeout)


def by_for_update(session: LockingSession) -> object:
    return session.scalars(select(Order).with_for_update(skip_locked=True)).all()


FOR_UPDATE, SHARED, SNAPSHOT = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
ACTS: dict[str, Act] = {
    "ForUpdate": takes(FOR_UPDATE),
    "SharedRead": takes(SHARED),
    "SnapshotRead": takes(SNAPSHOT),
    "NoWait": takes(FOR_UPDATE | LockOptions.NoWait),
    "SkipLocked": takes(FOR_UPDATE | LockOptions.SkipLocked),
    "a named lock": lambda session: session.lock_key("a key"),
    "lock_timeout": takes(FOR_UPDATE, 2),
    "with_for_update": by_for_update,
}
TIDB = "8.0.11-TiDB-v8.5.6"
EVERYTHING = set(ACTS)
CASES = [
    (TIDB, "TiDB", {"SharedRead", "SkipLocked", "SnapshotRead", "lock_timeout", "with_for_update"}),
    ("8.0.30-Vitess", "Vitess", set()),
    ("8.0.32-SingleStore", "SingleStore", {"SnapshotRead"}),
    ("8.0.25-OceanBase-v4.3.5", "OceanBase", set()),
    ("8.0.39-SomethingNew", None, set()),
    ("9.7.0", None, set()),
    (YUGABYTE, "YugabyteDB", {"lock_timeout", "a named lock"}),
    (YUGABYTE_2025, "YugabyteDB", {"lock_timeout"}),
    (
        REDSHIFT,
        "Amazon Redshift",
        EVERYTHING,
    ),
    (f"{ORIGINAL} (CockroachDB)", "CockroachDB", {"SharedRead", "a named lock"}),
    (f"{ORIGINAL}, SomethingNew 1.0", None, set()),
    (ORIGINAL, None, set()),
]


@rows("name", ACTS)
@rows(("version", "product", "refused"), CASES)
def test_locks_that_are_not_real_are_refused_and_nothing_is_sent(
    version: str, product: str | None, refused: set[str], name: str
) -> None:
    with session_on(version) as (session, script):
        if name not in refused:
            ACTS[name](session)
            assert script.selects
            return
        assert product is not None
        with pytest.raises(LockNotSupported, match=product) as caught:
            ACTS[name](session)
        assert "https://" in str(caught.value)
        assert script.selects == []
        assert not session.held_locks


AZURE = "Microsoft SQL Azure (RTM) - 12.0.2000.8"
WAREHOUSE = "Microsoft Azure SQL Data Warehouse - 10.0.15225.0"
BABELFISH = (
    "Babelfish for PostgreSQL with SQL Server Compatibility - 12.0.2000.8\n"
    "Oct 22 2020 17:48:49\nPostgreSQL 16.4 (EC2) (Babelfish 4.3.0)"
)
SQL_SERVERS = [
    (BABELFISH, 3, 1, "Babelfish", EVERYTHING, "port of PostgreSQL"),
    ("Microsoft SQL Server 2019", 3, 1, "Babelfish", {"ForUpdate"}, "port of PostgreSQL"),
    (WAREHOUSE, 6, None, "Azure Synapse", EVERYTHING, "Azure SQL Database"),
    (WAREHOUSE, 11, None, "Fabric Warehouse", EVERYTHING, "SQL database in Fabric"),
    *[(AZURE, edition, None, "", EVERYTHING, "") for edition in (5, 8, 9, 12)],
]


@pytest.mark.parametrize(
    ("version", "edition", "babelfish", "product", "acts", "instead"), SQL_SERVERS
)
def test_of_sql_servers_protocol_only_its_own_products_give_locks(
    version: str, edition: int, babelfish: int | None, product: str, acts: set[str], instead: str
) -> None:
    for name in sorted(acts):
        with (
            serving("mssql", mssql(version, edition, babelfish)) as (engine, script),
            LockingSession(engine) as session,
        ):
            if not product:
                ACTS[name](session)
                assert script.statements
                continue
            with pytest.raises(LockNotSupported, match=product) as caught:
                ACTS[name](session)
            assert instead in str(caught.value)
            assert script.selects == []
            assert not session.held_locks


# The first words of a refusal: the request, in the terms of that feature.
OWN_WORDS = {
    "ForUpdate": "does not support ForUpdate:",
    "SharedRead": "does not support SharedRead:",
    "SnapshotRead": "does not support SnapshotRead:",
    "NoWait": "does not support ForUpdate:",
    "SkipLocked": "does not support ForUpdate:",
    "a named lock": "does not support a named lock:",
    "a shared named lock": "does not support a named lock:",
    "lock_timeout": "does not support ForUpdate:",
    "with_for_update": "does not support ForUpdate:",
}


@pytest.fixture(autouse=True)
def beside_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tools ask over a connection of the scripted engine, which cannot be copied."""
    for tool in (doctor, monitoring):
        monkeypatch.setattr(tool, "side_connection", lambda engine, _: engine.connect())


LOCKS_NO_ROWS: dict[str, tuple[str, Callable[[Script], Engine]]] = {
    "Babelfish": ("mssql", mssql(BABELFISH, 3, 1)),
    "Azure Synapse": ("mssql", mssql(WAREHOUSE, 6, None)),
    "Fabric": ("mssql", mssql(WAREHOUSE, 11, None)),
    "Amazon Redshift": ("postgresql", postgresql(REDSHIFT)),
}


@pytest.mark.each_value
@pytest.mark.parametrize("product", LOCKS_NO_ROWS)
@pytest.mark.parametrize("name", OWN_WORDS)
def test_each_refusal_has_the_words_of_its_own_feature(product: str, name: str) -> None:
    protocol, connect = LOCKS_NO_ROWS[product]
    acts: dict[str, Act] = dict(ACTS)
    acts["a shared named lock"] = lambda session: session.lock_key("a", shared=True)
    with serving(protocol, connect) as (engine, script), LockingSession(engine) as session:
        with pytest.raises(LockNotSupported, match=OWN_WORDS[name]):
            acts[name](session)
        assert not [sql for sql in script.sent if sql.startswith(("SET", "EXEC", "SELECT"))]


@pytest.mark.parametrize("product", LOCKS_NO_ROWS)
def test_the_check_of_a_server_that_locks_no_rows_is_its_name_alone(product: str) -> None:
    protocol, connect = LOCKS_NO_ROWS[product]
    with serving(protocol, connect) as (engine, script):
        (found,) = check_database(engine, Base)
        assert script.selects == []  # about views and settings that it may not have
    assert found.code == f"{protocol}-compatible"
    assert product in found.text
    assert "SnapshotRead" in found.text
    assert "a named lock" in found.text
    assert "stress" not in found.cure


@pytest.mark.parametrize("product", LOCKS_NO_ROWS)
@pytest.mark.parametrize("known", [True, False])
def test_lock_waits_says_that_nobody_waits_there(product: str, known: bool) -> None:
    protocol, connect = LOCKS_NO_ROWS[product]
    with serving(protocol, connect) as (engine, script):
        if not known:  # no lock on the engine before
            del strategies[engine.dialect]
        with pytest.raises(LockNotSupported, match=rf"lock_waits\(\) does not support .*{product}"):
            lock_waits(engine)
        assert not [sql for sql in script.sent if "sys.dm_" in sql or "pg_locks" in sql]


def test_a_product_that_has_no_view_of_waits_is_named() -> None:
    def connect(script: Script) -> Engine:
        engine = mysql(TIDB)(script)
        missing = engine.dialect.loaded_dbapi.ProgrammingError(1146, "no such table")
        script.failures.append(("data_lock_waits", missing))
        return engine

    with serving("mysql", connect) as (engine, _):
        with pytest.raises(
            LockNotSupported, match="does not support TiDB, which refuses"
        ) as caught:
            lock_waits(engine)
        assert "no such table" in str(caught.value.__cause__)


def test_a_lost_connection_is_no_word_about_the_product() -> None:
    def connect(script: Script) -> Engine:
        engine = mysql(TIDB)(script)
        lost = engine.dialect.loaded_dbapi.OperationalError(2013, "Lost connection")
        script.failures.append(("data_lock_waits", lost))
        return engine

    with serving("mysql", connect) as (engine, _), pytest.raises(OperationalError, match="Lost"):
        lock_waits(engine)


def test_an_answer_that_only_another_product_gives_is_a_finding() -> None:
    def connect(script: Script) -> Engine:
        engine = postgresql(YUGABYTE)(script)
        script.handshake = {**script.handshake, "pg_settings": [("lock_timeout", None)]}
        return engine

    with serving("postgresql", connect) as (engine, _):
        found = {one.code for one in check_scripted(engine)}
    assert {"postgresql-compatible", "not-checked"} <= found


def test_the_check_of_the_database_names_a_warehouse() -> None:
    with serving("mssql", mssql(WAREHOUSE, 11, None)) as (engine, _):
        (found,) = (one for one in check_scripted(engine) if one.code == "mssql-compatible")
    assert found.severity == "error"
    assert "Fabric Warehouse" in found.text
    assert WAREHOUSE in found.text


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_aurora_dsql_is_recognised_by_its_host(name: str) -> None:
    with session_on("PostgreSQL 16", DSQL) as (session, script):
        if name == "SnapshotRead":
            ACTS[name](session)
            assert script.selects
            return
        with pytest.raises(LockNotSupported, match="Aurora DSQL"):
            ACTS[name](session)
        assert script.selects == []


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_tidb_in_optimistic_mode_gives_no_lock(name: str) -> None:
    def connect(script: Script) -> Engine:
        engine = mysql(TIDB)(script)
        received = [("version", TIDB), ("tidb_txn_mode", "optimistic")]
        script.handshake = {**script.handshake, "innodb_rollback_on_timeout": received}
        return engine

    with serving("mysql", connect) as (engine, script), LockingSession(engine) as session:
        with pytest.raises(LockNotSupported, match="optimistic"):
            ACTS[name](session)
        assert script.selects == []


def test_a_text_that_sqlalchemy_cannot_read_names_its_product() -> None:
    script = Script()
    engine = postgresql(COCKROACH)(script)
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotSupported, match=r"is CockroachDB, to which .* does not connect"),
    ):
        session.get_entity(Order, 1, FOR_UPDATE)
    engine.dispose()


def test_one_that_nobody_knows_stays_sqlalchemys_error() -> None:
    engine = postgresql("SomethingNew 1.0")(Script())
    with pytest.raises(AssertionError, match="SomethingNew"):
        strategy_for(engine)
    engine.dispose()


@pytest.mark.parametrize("version", [ORIGINAL, YUGABYTE, TIDB, "9.7.0"])
def test_the_version_is_read_once_for_an_engine(version: str) -> None:
    with session_on(version) as (session, script):
        for key in (1, 2):
            session.get_entity(Order, key, FOR_UPDATE)
            session.release_locks()
        assert not [sql for sql in script.sent if "version()" in sql.lower()]


def test_the_question_leaves_no_transaction_open() -> None:
    script = Script()
    engine = postgresql(ORIGINAL)(script)
    with engine.connect():
        pass
    script.sent.clear()
    with LockingSession(engine) as session:
        session.execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
        asked = script.sent.index("SELECT pg_catalog.version()")
        assert script.sent[asked + 1] == "(rollback)"
        assert script.sent.index("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE") > asked + 1
    engine.dispose()


def test_vitess_gets_the_level_of_the_session() -> None:
    with session_on("8.0.30-Vitess") as (session, script):
        session.get_entity(Order, 1, FOR_UPDATE)
        assert "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED" in script.sent
    with session_on("9.7.0") as (session, script):
        session.get_entity(Order, 1, FOR_UPDATE)
        assert "SET TRANSACTION ISOLATION LEVEL READ COMMITTED" in script.sent


@pytest.mark.parametrize(
    ("protocol", "version", "name", "known"),
    [
        ("postgresql", COCKROACH, "CockroachDB", (23, 1, 11)),
        ("postgresql", YUGABYTE, "YugabyteDB", (2, 20, 1)),
        ("postgresql", REDSHIFT, "Amazon Redshift", (1, 0, 12103)),
        ("mysql", TIDB, "TiDB", (8, 5, 6)),
        ("mysql", "5.7.25-OceanBase-v4.2.1", "OceanBase", (4, 2, 1)),
        ("mysql", "5.7.25 OceanBase_CE 4.2.1.0 (r100)", "OceanBase", (4, 2, 1)),
        ("mysql", "5.7.32 SingleStoreDB source distribution", "SingleStore", ()),
        ("mysql", "8.0.mysql_aurora.3.04.0 Aurora", "Aurora MySQL", ()),
    ],
)
def test_the_version_of_the_product(
    protocol: str, version: str, name: str, known: tuple[int, ...]
) -> None:
    found = find_server(protocol, version)
    assert found is not None
    assert found.product.name == name
    named = f"{name} {'.'.join(map(str, known))}".rstrip()
    assert all(reason.startswith(f"{named} does not") for reason in found.refused.values())


def test_the_check_of_the_database_names_the_locks_that_are_refused() -> None:
    def connect(script: Script) -> Engine:
        engine = mysql(TIDB)(script)
        script.handshake = {**script.handshake, "SHOW VARIABLES": [("version", TIDB)]}
        return engine

    with serving("mysql", connect) as (engine, _):
        (found,) = (one for one in check_scripted(engine) if one.code == "innodb-compatible")
    assert "the server is TiDB" in found.text
    assert "SharedRead, SnapshotRead, SkipLocked, lock_timeout" in found.text


def test_every_fact_has_a_source() -> None:
    for product in COMPATIBLE_SERVERS:
        documented = DOCUMENTED.get(product.name, {})
        for fact in (*product.refused.values(), *documented.values()):
            assert fact.source.startswith("https://")
        assert not set(product.refused) & set(documented), product.name
        assert all(fact.text for fact in product.refused.values())
    assert DOCUMENTED.keys() | NOTES.keys() <= {one.name for one in COMPATIBLE_SERVERS}
    assert {one.protocol for one in COMPATIBLE_SERVERS} == {"postgresql", "mysql", "mssql"}
    assert LockFeature.NAMED.value in ACTS


def test_each_row_of_the_page_has_its_double() -> None:
    """The page marks each such row with D: a double stands in for the product."""
    doubled = {product for _, product, _ in CASES if product} | {
        "Aurora DSQL",
        "TiDB in optimistic",
    }
    doubled |= {one[3] for one in SQL_SERVERS if one[3] and one[4] == EVERYTHING}
    shown = (
        {one.name for one in COMPATIBLE_SERVERS if one.refused} | DOCUMENTED.keys() | NOTES.keys()
    )
    assert [name for name in shown if not any(one in name for one in doubled)] == []
    assert [one for one in doubled if not any(one in name for name in shown)] == []


def test_what_has_run_is_told_with_its_tests() -> None:
    evidence = Path(__file__).with_name("evidence.md").read_text("utf-8")
    assert all(f"\n## {product}\n" in evidence for product in RUN)
    assert {one.name for one in COMPATIBLE_SERVERS} >= RUN
