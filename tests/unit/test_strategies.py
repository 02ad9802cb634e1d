"""The strategy of each database: the connected server decides, never the URL."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, Engine, Select, create_engine, event, select
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from sa_doclock.dialects import find_strategy, product_of, strategy_classes, strategy_for
from sa_doclock.dialects.base import LockStatements, LockStrategy, LockText, LockWaits, Reach
from sa_doclock.dialects.isolation import IsolationLevels
from sa_doclock.dialects.mariadb import MariaDBLocks
from sa_doclock.dialects.mssql import SQLServerLocks
from sa_doclock.dialects.mysql import MySQLLocks
from sa_doclock.dialects.postgresql import PostgreSQLLocks
from sa_doclock.dialects.sqlite import SQLiteLocks
from tests.sql.servers import serving
from tests.support.entry_points import installed
from tests.support.models import Order

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
    """A database that nothing is known of: SQLite under another name, with table hints."""

    name = "firebird"
    supports_statement_cache = True
    statement_compiler = FirebirdCompiler


class FirebirdStatements(LockStatements):
    texts: ClassVar = {LockOptions.ForUpdate: LockText("WITH LOCK")}


class FirebirdLocks(LockStrategy):
    """A strategy that another package could have for it."""

    name = "firebird"
    isolation = SQLiteLocks.isolation
    errors = SQLiteLocks.errors
    statements = FirebirdStatements()

    def check_autocommit(self, connection: Connection) -> None:
        """Accept the int that sqlite3 has for an attribute of that name."""


registry.register("firebird", __name__, "FirebirdDialect")


@pytest.fixture
def firebird(engine: Engine) -> Iterator[Engine]:
    """Connect to the file by its other name."""
    other = create_engine(f"firebird:///{engine.url.database}")
    yield other
    other.dispose()


@pytest.fixture
def entry_point(tmp_path: Path) -> Iterator[None]:
    """Install a package that brings a strategy, and another for a database that is known."""
    with installed(dict.fromkeys(("firebird", "sqlite"), f"{__name__}:FirebirdLocks"), tmp_path):
        yield


@pytest.fixture
def broken_entry_point(tmp_path: Path) -> Iterator[None]:
    """Install a package whose own driver, say, is not installed."""
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
    """As that of Firebird, whose own dialect knows the level of its transactions."""
    connection = Mock()
    connection.dialect.get_isolation_level.side_effect = NotImplementedError
    assert IsolationLevels().ask_level(connection) is None
