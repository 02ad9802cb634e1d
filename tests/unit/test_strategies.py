"""The strategy of each database: the connected server decides, never the URL."""

from __future__ import annotations

import ast
import gc
import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Select, create_engine, event, select
from sqlalchemy.dialects import registry, sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from sa_doclock.core.statements import add_suffixes, drop_lock
from sa_doclock.dialects import (
    find_strategy,
    may_wait,
    product_of,
    strategy_classes,
    strategy_for,
    suffixed,
)
from sa_doclock.dialects.base import (
    Ends,
    ErrorCode,
    EveryError,
    Limit,
    LockStatements,
    LockStrategy,
    LockText,
    LockWaits,
    MetError,
    Reach,
)
from sa_doclock.dialects.isolation import IsolationLevels
from sa_doclock.dialects.mariadb import MariaDBLocks
from sa_doclock.dialects.mssql import SQLServerLocks
from sa_doclock.dialects.mysql import MySQLLocks
from sa_doclock.dialects.postgresql import PostgreSQLLocks
from sa_doclock.dialects.sqlite import SQLiteLocks, SQLiteStatements
from tests.sql.servers import serving
from tests.support.entry_points import installed
from tests.support.models import Order

SHARED, SNAPSHOT, NO_WAIT = LockOptions.SharedRead, LockOptions.SnapshotRead, LockOptions.NoWait


EXPECTED = {
    "postgresql": PostgreSQLLocks,
    "mysql": MySQLLocks,
    "mysql-5.7": MySQLLocks,
    "mariadb": MariaDBLocks,
    "mssql": SQLServerLocks,
    "sqlite": SQLiteLocks,
}


class FirebirdCompiler(SQLiteCompiler):
    def get_from_hint_text(self, table: Any, text: Any) -> Any:
        return text


class FirebirdDialect(SQLiteDialect_pysqlite):
    """An unknown database: SQLite under another name, with table hints."""

    name = "firebird"
    supports_statement_cache = True
    statement_compiler = FirebirdCompiler


class FirebirdStatements(LockStatements):
    texts: ClassVar = {LockOptions.ForUpdate: LockText("WITH LOCK")}


class FirebirdLocks(LockStrategy):
    """A strategy for it, as another package could provide."""

    name = "firebird"
    isolation = SQLiteLocks.isolation
    errors = SQLiteLocks.errors
    statements = FirebirdStatements()

    def check_autocommit(self, connection: Connection) -> None:
        """Accept the int that sqlite3 stores under that attribute name."""


registry.register("firebird", __name__, "FirebirdDialect")


@pytest.fixture
def firebird(engine: Engine) -> Iterator[Engine]:
    other = create_engine(f"firebird:///{engine.url.database}")
    yield other
    other.dispose()


@pytest.fixture
def entry_point(tmp_path: Path) -> Iterator[None]:
    """Install a package with a strategy for this database, and another for a supported database."""
    with installed(dict.fromkeys(("firebird", "sqlite"), f"{__name__}:FirebirdLocks"), tmp_path):
        yield


@pytest.fixture
def broken_entry_point(tmp_path: Path) -> Iterator[None]:
    """Install a package that cannot be imported, for example because its driver is missing."""
    with installed({"firebird": "no_such_module:FirebirdLocks"}, tmp_path):
        yield


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_the_database_that_answered_decides(name: str, expected: type[LockStrategy]) -> None:
    with serving(name) as (engine, _):
        assert type(strategy_for(engine)) is expected
        with engine.connect() as connection:
            assert strategy_for(connection) is strategy_for(engine)
            assert find_strategy(connection) is strategy_for(engine)


def test_a_mysql_url_that_leads_to_mariadb_is_mariadb() -> None:
    with serving("mariadb") as (engine, _):
        assert engine.url.get_backend_name() == engine.dialect.name == "mysql"
        assert product_of(engine.dialect) == "mariadb"
        assert Reach.ONE_TABLE not in strategy_for(engine).statements.reach


def test_engines_with_other_options_share_the_strategy() -> None:
    with serving("mysql") as (engine, _):
        other = engine.execution_options(isolation_level="READ COMMITTED")
        assert strategy_for(other) is strategy_for(engine)


@pytest.mark.slow
def test_a_strategy_goes_with_its_engine() -> None:
    with serving("postgresql") as (engine, _):
        strategy, dialect = weakref.ref(strategy_for(engine)), weakref.ref(engine.dialect)
    del engine
    gc.collect()
    assert (strategy(), dialect()) == (None, None)


def test_nothing_can_be_locked_on_a_database_that_nobody_knows(firebird: Engine) -> None:
    with LockingSession(firebird) as session:
        for lock in (LockOptions.SharedRead, LockOptions.ForUpdate, LockOptions.SnapshotRead):
            with pytest.raises(
                LockNotSupported, match="no lock dialect is registered for firebird"
            ):
                session.get_entity(Order, 1, lock)
            with pytest.raises(
                LockNotSupported, match="no lock dialect is registered for firebird"
            ):
                session.scalars(session.entity_set(Order, lock))


def test_a_locking_session_is_a_session_there_too(firebird: Engine) -> None:
    with LockingSession(firebird) as session:
        order = session.get_entity(Order, 1)
        assert order is not None
        assert session.get_entity(Order, 1, LockOptions.NoLock) is order
        with session.begin_nested():
            order.total = 7
        session.save_changes()
        assert session.scalars(select(Order.total).where(Order.id == 1)).one() == 7
        session.release_locks()
        assert not session.in_transaction()


@pytest.mark.usefixtures("entry_point")
def test_another_package_can_bring_a_strategy(firebird: Engine) -> None:
    assert isinstance(strategy_for(firebird), FirebirdLocks)
    locked = with_lock(select(Order), LockOptions.ForUpdate)
    assert str(locked.compile(firebird)).splitlines()[-1] == "FROM lk_order WITH LOCK"


@pytest.mark.usefixtures("entry_point")
def test_a_strategy_that_says_nothing_of_named_locks_has_none(firebird: Engine) -> None:
    with LockingSession(firebird) as session:
        with pytest.raises(LockNotSupported, match="for firebird has no named locks"):
            session.lock_key("user:42")
        assert not session.in_transaction()


class WaitsInText(LockWaits):
    def timed(self, statement: Select[Any], lock: LockOptions, seconds: float) -> Select[Any]:
        return statement.suffix_with(f"/* {lock.name} for {seconds:g} s */")


@pytest.mark.usefixtures("entry_point")
def test_a_strategy_that_limits_by_the_text_alone_needs_to_say_nothing_else(
    firebird: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FirebirdLocks, "statements", LockStatements())
    monkeypatch.setattr(FirebirdLocks, "waits", WaitsInText())
    sent: list[str] = []
    event.listen(firebird, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with LockingSession(firebird) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=7)
    (locking,) = [text for text in sent if "FROM lk_order" in text]
    assert "/* ForUpdate for 7 s */" in locking


@pytest.mark.usefixtures("entry_point")
def test_texts_that_no_statement_would_carry_are_refused(
    firebird: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SharedStatements(FirebirdStatements):
        texts: ClassVar = {LockOptions.SharedRead: LockText("WITH SHARE")}

    def note_server(strategy: FirebirdLocks, _connection: Connection) -> None:
        strategy.statements = SharedStatements()

    monkeypatch.setattr(FirebirdLocks, "note_server", note_server)
    with (
        LockingSession(firebird) as session,
        pytest.raises(TypeError, match=r"FirebirdLocks\.statements\.texts is set for an engine"),
    ):
        session.get_entity(Order, 1, LockOptions.ForUpdate)


@pytest.mark.usefixtures("entry_point")
def test_another_package_does_not_replace_what_is_built_in(engine: Engine) -> None:
    assert isinstance(strategy_for(engine), SQLiteLocks)
    assert strategy_classes()["sqlite"] is SQLiteLocks


@pytest.mark.usefixtures("broken_entry_point")
def test_a_package_that_is_broken_breaks_its_own_database_alone(
    engine: Engine, firebird: Engine
) -> None:
    with LockingSession(engine) as session:
        assert session.scalars(session.entity_set(Order, LockOptions.ForUpdate)).all()
    with LockingSession(firebird) as session, pytest.raises(ImportError, match="no_such_module"):
        session.get_entity(Order, 1, LockOptions.ForUpdate)


def test_a_plain_session_asks_nobody(firebird: Engine) -> None:
    with Session(firebird) as session:
        assert session.scalars(with_lock(select(Order), LockOptions.ForUpdate)).all()


def test_a_dialect_of_sqlalchemys_without_levels_cannot_be_asked() -> None:
    """Like Firebird's, whose own dialect knows the isolation level."""
    connection = Mock()
    connection.dialect.get_isolation_level.side_effect = NotImplementedError
    assert IsolationLevels().ask_level(connection) is None


# --------------------------------------------------------------------------------------------------
# The rows of a dialect's errors, and the locks that wait.

FOR_UPDATE = LockOptions.ForUpdate
each_database = pytest.mark.parametrize(
    "name", ["postgresql", "mysql", "mariadb", "mssql", "sqlite"]
)


def strategy_of(name: str) -> LockStrategy:
    url = "postgresql+psycopg2://" if name == "postgresql" else f"{name}://"
    engine = sa.create_mock_engine(url, lambda *_: None)
    return strategy_classes()[name](engine.dialect)


@each_database
def test_a_row_has_one_class_and_each_says_something(name: str) -> None:
    for code, row in strategy_of(name).errors.codes.items():
        assert row != ErrorCode(), code
        assert row.error is None or row.in_lock is None, code
        assert not (row.why and row.error is row.in_lock is None), code


@each_database
def test_a_number_without_a_row_means_nothing(name: str) -> None:
    errors = strategy_of(name).errors
    assert errors["no such number"] == errors[None] == ErrorCode()


@pytest.mark.parametrize(("name", "code"), [("mysql", 3024), ("mariadb", 1969)])
def test_a_limit_of_statements_is_a_failed_lock_only_if_the_statement_cannot_be_slow(
    name: str, code: int
) -> None:
    errors, connection = strategy_of(name).errors, Any
    met = MetError(code, ValueError(), connection, locking=True, by_key=False)  # type: ignore[arg-type]
    assert errors[code].limit is Limit.STATEMENT
    assert errors.meaning(met).in_lock is None
    assert errors.meaning(met._replace(by_key=True)).in_lock is errors[code].in_lock is not None


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("postgresql", set()),  # each error aborts, and the transaction stays until the rollback
        ("mysql", {1206, 1213}),
        ("mariadb", {1020, 1206, 1213}),
        ("sqlite", set()),
    ],
)
def test_the_errors_that_end_a_transaction(name: str, ended: set[int]) -> None:
    errors = strategy_of(name).errors
    assert {code for code, row in errors.codes.items() if row.ends is Ends.TRANSACTION} == ended
    assert (errors.every_error is EveryError.ABORTS) is (name == "postgresql")


@pytest.mark.parametrize(
    ("name", "waiting"),
    [
        ("postgresql", {FOR_UPDATE, SHARED}),
        ("mysql", {FOR_UPDATE, SHARED}),
        ("mariadb", {FOR_UPDATE, SHARED}),
        ("mssql", {FOR_UPDATE}),  # a SharedRead is a snapshot
        ("sqlite", {FOR_UPDATE}),  # the file's write lock
    ],
)
def test_the_locks_that_wait_follow_from_the_select(name: str, waiting: set[LockOptions]) -> None:
    strategy = strategy_of(name)
    assert {lock for lock in (FOR_UPDATE, SHARED, SNAPSHOT) if may_wait(strategy, lock)} == waiting
    assert may_wait(strategy, FOR_UPDATE | LockOptions.NoKey)


# --------------------------------------------------------------------------------------------------
# Public names, and texts at the end of a SELECT, for dialects in other packages.

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {"sa_doclock", "sa_doclock.errors", "sa_doclock.dialects.base"}
EXAMPLES = sorted((ROOT / "examples").glob("*/src/**/*.py"))


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


# --------------------------------------------------------------------------------------------------
# SQLite's error numbers, including on Python 3.10, whose sqlite3 does not report them.

TEXTS = {
    "database is locked": 5,
    "database table is locked": 6,
    "database table is locked: lk_order": 6,
    "attempt to write a readonly database": 8,
    "no such table: lk_order": None,
}


@pytest.mark.parametrize(("text", "number"), TEXTS.items())
def test_the_text_tells_it_where_there_is_no_number(text: str, number: int | None) -> None:
    error = sqlite3.OperationalError(text)
    assert not hasattr(error, "sqlite_errorcode")  # not from SQLite itself
    assert strategy_for(create_engine("sqlite://")).errors.native_code(error) == number
