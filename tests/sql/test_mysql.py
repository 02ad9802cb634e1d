"""MySQL and MariaDB: hints, named locks, lost connections, questions and limits, on scripted servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, select
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, PendingRollbackError, StatementError

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockLost,
    LockNotAvailable,
    LockOptions,
    with_lock,
)
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import Ends
from sa_doclock.dialects.mysql import MySQLLocks
from tests.sql.driver import Script
from tests.sql.models import Customer, Order
from tests.sql.servers import SERVERS, Error, InternalError, OperationalError, serving

# --------------------------------------------------------------------------------------------------
# The lock timeout on MySQL is an optimizer hint, beside those of the program.

ForUpdate = LockOptions.ForUpdate


@pytest.mark.parametrize(
    ("prefixes", "start"),
    [
        ((), "/*+ MAX_EXECUTION_TIME(400) */"),
        (("/*+ NO_ICP(o) */",), "/*+ MAX_EXECUTION_TIME(400) NO_ICP(o) */"),
        (("SQL_NO_CACHE",), "/*+ MAX_EXECUTION_TIME(400) */ SQL_NO_CACHE"),
        (
            ("/*+ NO_ICP(o)*/", "HIGH_PRIORITY", "/*+ BKA(o) */"),
            "/*+ MAX_EXECUTION_TIME(400) NO_ICP(o) BKA(o) */ HIGH_PRIORITY",
        ),
        (("/*+ max_execution_time( 90 ) */",), "/*+ MAX_EXECUTION_TIME(90) */"),
        (("/*+ MAX_EXECUTION_TIME(0) BKA(o) */",), "/*+ MAX_EXECUTION_TIME(400) BKA(o) */"),
        (("/*+ MAX_EXECUTION_TIME(9000) */",), "/*+ MAX_EXECUTION_TIME(400) */"),
        (("/* a remark */",), "/*+ MAX_EXECUTION_TIME(400) */ /* a remark */"),
    ],
)
def test_it_is_in_the_first_comment(prefixes: tuple[str, ...], start: str) -> None:
    statement = select(Order.id)
    for prefix in prefixes:
        statement = statement.prefix_with(prefix)
    locked = with_lock(statement, ForUpdate, Order)
    timed = MySQLLocks.waits.timed(locked, ForUpdate, 0.4)
    sent = timed.compile(dialect=mysql.dialect(), compile_kwargs={"render_postcompile": True})
    assert str(sent).startswith(f"SELECT {start} shop_order.id")
    assert timed._generate_cache_key() != locked._generate_cache_key()


# --------------------------------------------------------------------------------------------------
# GET_LOCK outlives its transaction: what is released, and when the session knows.
#
# The server is scripted: that it holds the lock is proved in tests/integration/named_locks.

RELEASE = "DO RELEASE_LOCK('shop.user:42')"


@pytest.fixture(params=["mysql", "mariadb"])
def scripted(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Script]]:
    with serving(request.param) as served:
        yield served


def answer(script: Script, value: object) -> None:
    script.handshake = {**script.handshake, "GET_LOCK": value}


@pytest.mark.parametrize("number", [3024, 1317, 2013])
def test_an_answer_that_has_not_come_may_have_been_a_grant(
    session: LockingSession, script: Script, number: int
) -> None:
    script.failures.append(("GET_LOCK", OperationalError(number, "interrupted")))
    with pytest.raises(DBAPIError):
        session.lock_key("user:42")
    assert (RELEASE in script.sent) is (number != 2013)  # the connection is lost


@pytest.mark.parametrize("value", [0, None])
def test_refused_by_value(session: LockingSession, script: Script, value: object) -> None:
    answer(script, value)
    with pytest.raises(LockNotAvailable, match="named lock 'user:42' FOR UPDATE on m") as caught:
        session.lock_key("user:42")
    assert caught.value.orig is None
    assert not session.in_transaction()


def released(database: str, key: str) -> str:
    """Return the statement that releases this key in this database, which reports the lock's name."""
    with serving("mysql") as (engine, script), engine.connect() as connection:
        engine.dialect.default_schema_name = database
        MySQLLocks.named_locks.take(connection, key, LockOptions.ForUpdate, None)
    return next(sql for sql in script.sent if "RELEASE_LOCK" in sql)


def test_no_key_has_the_name_of_another_in_another_database() -> None:
    assert released("shop", "eu.user:42") == "DO RELEASE_LOCK('shop.eu.user:42')"
    others = {("shop", "eu.user:42"), ("shop.eu", "user:42"), ("shop%2Eeu", "user:42")}
    assert len({released(*one) for one in others}) == 3


def test_each_grant_is_released_once(session: LockingSession, script: Script) -> None:
    for _ in range(2):
        savepoint = session.begin_nested()
        session.lock_key("user:42")
        savepoint.rollback()
    session.rollback()
    session.get(Customer, 1)
    session.commit()
    assert len([sql for sql in script.sent if "GET_LOCK" in sql]) == 2
    assert script.sent.count(RELEASE) == 2


def test_a_deadlock_of_names_is_one(session: LockingSession, script: Script) -> None:
    number = 1213 if session.get_bind().dialect.is_mariadb else 3058  # type: ignore[attr-defined]
    script.failures.append(("GET_LOCK", OperationalError(number, "deadlock")))
    with pytest.raises(DeadlockDetected, match="named lock 'user:42' FOR UPDATE on m"):
        session.lock_key("user:42")
    assert script.sent[-6:].count("(rollback)") >= 1


# --------------------------------------------------------------------------------------------------
# Errors of MySQL's drivers that lose the connection, although SQLAlchemy does not recognize them.

OWN = {"mysql": (3169, 4031), "mariadb": (1927,)}


class ConnectorError(OperationalError):
    """An error in the shape of mysql-connector's."""

    def __init__(self, errno: int, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.errno, self.__cause__ = errno, cause


def lost(product: str) -> Iterator[Error]:
    # mysql-connector has no number for it, and SQLAlchemy knows the text only with a full stop.
    yield ConnectorError(-1, "MySQL Connection not available")
    yield ConnectorError(-1, "MySQL Connection not available.")
    # Nor does a read timeout end its connection, despite the error's text.
    yield ConnectorError(3024, "The Read Operation timed out", TimeoutError("timed out"))
    yield InternalError("Packet sequence number wrong - got 80 expected 1")
    for number in (1053, 1153, *OWN[product]):
        yield ConnectorError(number, "of the server")
        yield OperationalError(number, "of the server")


@pytest.mark.parametrize("product", OWN)
def test_it_has_lost_its_locks(product: str) -> None:
    with serving(product) as (engine, script), LockingSession(engine) as session:
        for error in lost(product):
            session.get_entity(Order, 1, ForUpdate)
            driver = session.connection().connection.driver_connection
            script.failures.append(("SELECT 2", error))
            with pytest.raises(LockLost) as caught:
                session.scalar(sa.text("SELECT 2"))
            assert caught.value.orig is error
            assert not session.held_locks
            with pytest.raises(PendingRollbackError):
                session.get_entity(Order, 1, ForUpdate)
            session.rollback()
            assert session.connection().connection.driver_connection is not driver
            session.rollback()


def test_who_asks_whether_a_transaction_has_ended_is_told() -> None:
    with serving("mysql") as (engine, script), LockingSession(engine) as session:
        for error in lost("mysql"):
            session.get_entity(Order, 1, ForUpdate)
            session.execute(sa.text("CALL a_procedure()"))
            script.failures.append(("RELEASE SAVEPOINT sa_doclock_mark", error))
            assert len(session.held_locks) <= 1  # no error of the driver escapes
            script.failures.append(("SELECT 2", error))
            with pytest.raises((LockLost, PendingRollbackError)):
                session.scalar(sa.text("SELECT 2"))
            assert not session.held_locks
            session.rollback()
            script.failures.clear()


class Secret(sa.TypeDecorator[str]):
    """A type of the program, whose service is unreachable."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: object, dialect: object) -> str:
        """Raise an error from the program's own socket."""
        raise RuntimeError from ConnectionError()


def test_another_error_loses_none() -> None:
    with serving("mysql") as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, ForUpdate)
        script.failures.append(("SELECT 2", ConnectorError(-1, "Unread result found")))
        with pytest.raises(DBAPIError):
            session.scalar(sa.text("SELECT 2"))
        assert session.held_locks
        with pytest.raises(StatementError) as caught:
            session.scalar(sa.select(sa.literal("a", Secret())))
        assert isinstance(caught.value.orig, RuntimeError)
        assert session.held_locks


# --------------------------------------------------------------------------------------------------
# A library query that meets the end of the transaction: error 1213 on a cluster node.
#
# Another node's commit ends the conflicting transaction, which learns of it later.

Act = Callable[[LockingSession], object]

WITHIN = select(Customer.id).where(Customer.id == 1).with_for_update().scalar_subquery()
ACTS: dict[str, Act] = {
    "by key": lambda session: session.get_entity(Customer, 1, LockOptions.ForUpdate),
    "adopted": lambda session: session.scalars(select(Customer).with_for_update()).all(),
    "within a statement": lambda session: session.scalars(
        select(Order.id).where(Order.id == WITHIN)
    ),
    "within an adopted one": lambda session: session.scalars(
        select(Order).where(Order.id == WITHIN).with_for_update()
    ),
}


@pytest.fixture(params=["mysql", "mariadb"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[LockingSession, Script]]:
    """A session that holds a document, and its server."""
    with serving(request.param) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        yield session, script


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_nothing_follows_until_the_rollback(
    served: tuple[LockingSession, Script], act: Act
) -> None:
    session, script = served
    for question in ("information_schema.tables", "SHOW CREATE TABLE"):
        script.failures.append((question, OperationalError(1213, "Deadlock found")))
    with pytest.raises(DeadlockDetected):
        act(session)
    script.failures.clear()
    assert not session.held_locks
    for escape in (
        lambda: session.scalars(select(Order.id)).all(),
        lambda: session.get_entity(Order, 1, LockOptions.ForUpdate),
        session.commit,
    ):
        with pytest.raises(PendingRollbackError):
            escape()
    session.rollback()
    session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert session.held_locks


# --------------------------------------------------------------------------------------------------
# innodb_rollback_on_timeout: whether error 1205 undoes the statement or the whole transaction.
#
# The servers are scripted: none of the test servers sets this option, which is read at startup.

ASKED = "innodb_rollback_on_timeout"
both = pytest.mark.parametrize("name", ["mysql", "mariadb"])


def undoing(name: str, **options: Any) -> Callable[[Script], Engine]:
    """A server with the option, and an engine with these execution options."""

    def connect(script: Script) -> Engine:
        engine = SERVERS[name](script)
        script.handshake = {**script.handshake, ASKED: [(ASKED, "ON")]}
        return engine.execution_options(**options)

    return connect


@both
@pytest.mark.parametrize("options", [{}, {"isolation_level": "READ COMMITTED"}], ids=str)
def test_it_is_known_whatever_the_options_of_the_connection(
    name: str, options: dict[str, Any]
) -> None:
    with serving(name, undoing(name, **options)) as (engine, _):
        strategy = strategy_for(engine)
        assert strategy.errors[1205].ends is Ends.TRANSACTION
        assert type(strategy).errors[1205].ends is Ends.NOTHING


@both
def test_it_is_off_elsewhere_and_asked_once(name: str) -> None:
    with serving(name) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert not [text for text in script.sent if ASKED in text]
        assert strategy_for(engine).errors[1205].ends is Ends.NOTHING


def test_a_wait_that_has_undone_the_transaction_is_not_waited_again() -> None:
    with serving("mysql", undoing("mysql")) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        script.failures.append(("FOR UPDATE", OperationalError(1205, "Lock wait timeout exceeded")))
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 2, LockOptions.ForUpdate, lock_timeout=60)
        assert session.held_locks == {}
