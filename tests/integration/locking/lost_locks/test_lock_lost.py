"""LockLost: a connection is lost while it holds a lock, so nothing can be saved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockLost, LockOptions, run_transaction
from sa_doclock.testing import recorded_locks
from tests.integration.locking.steps import soon_free
from tests.support.databases import PGPOOL, Database
from tests.support.models import Customer, Order
from tests.support.waits import wait_until

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Run = Callable[..., list[Any]]
TOTALS = sa.select(Order.total).order_by(Order.id)
OWN_ID = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
}
KILL = {
    "postgresql": "SELECT pg_terminate_backend({}, 10000)",
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
}
SERVERS = pytest.mark.databases(*KILL)


def kill(database: Database, number: int) -> None:
    with database.observer().connect() as connection:
        connection.exec_driver_sql(KILL[database.name].format(number))


def lock_and_lose(session: Session, database: Database) -> Order:
    order = session.get_one_entity(Order, 1, ForUpdate)
    kill(database, session.connection().exec_driver_sql(OWN_ID[database.name]).scalar_one())
    return order


def write(session: Session) -> None:
    session.get_one(Order, 1).total = 31
    session.flush()


USES: dict[str, Callable[[Session], object]] = {
    "statement": lambda session: session.scalar(sa.text("SELECT 1")),
    "flush": write,
    "another lock": lambda session: session.get_one_entity(Order, 2, ForUpdate),
    "with a limit": lambda session: session.get_one_entity(Order, 2, ForUpdate, lock_timeout=9.5),
}


@pytest.mark.read_committed
@SERVERS
@pytest.mark.parametrize("use", USES)
def test_the_statement_that_finds_it_out(
    session: Session, other: Session, database: Database, elsewhere: Run, use: str
) -> None:
    kept = lock_and_lose(session, database)
    with pytest.raises(LockLost) as caught:
        USES[use](session)
    error = caught.value
    assert isinstance(error, DBAPIError)
    assert (error.entity, error.ident, error.lock) == (Order, 1, ForUpdate)
    assert error.args[0].startswith(f"Order 1 FOR UPDATE on {database.name}: lost after ")
    assert "the connection to the server was lost; nothing of" in error.args[0]
    assert error.orig is not None
    assert error.connection_invalidated
    assert not error.retryable
    assert not session.held_locks
    with pytest.raises(PendingRollbackError):
        session.get_one(Customer, 1)
    session.rollback()
    assert soon_free(other)
    assert elsewhere(TOTALS) == [(30,), (5,)]
    with session.locked(Order, 1) as order:
        order.total = 32
    assert elsewhere(TOTALS) == [(32,), (5,)]
    del kept


@pytest.mark.read_committed
@SERVERS
def test_a_block_says_so(session: Session, database: Database, elsewhere: Run) -> None:
    def change() -> None:
        with session.locked(Order, 1) as order:
            number = session.connection().exec_driver_sql(OWN_ID[database.name]).scalar_one()
            kill(database, number)
            order.total = 31

    with pytest.raises(DBAPIError) as caught:
        change()
    assert isinstance(caught.value, LockLost)
    assert caught.value.connection_invalidated
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.read_committed
@SERVERS
def test_run_transaction_does_not_repeat_it(
    session_factory: sessionmaker[Session], database: Database
) -> None:
    calls = []

    def work(session: Session) -> None:
        calls.append(lock_and_lose(session, database))
        write(session)

    with pytest.raises(LockLost):
        run_transaction(session_factory, work)
    assert len(calls) == 1


@pytest.mark.read_committed
@SERVERS
def test_when_nobody_knows_it_is_the_servers_error(session: Session, database: Database) -> None:
    """COMMIT was sent: LockLost would claim that nothing is saved."""
    kept = session.get_one_entity(Order, 1, ForUpdate)
    number = session.connection().exec_driver_sql(OWN_ID[database.name]).scalar_one()
    assert session.held_locks  # else the session queries the server before COMMIT
    kill(database, number)
    with pytest.raises(DBAPIError) as caught:
        session.commit()
    assert not isinstance(caught.value, LockLost)
    assert caught.value.connection_invalidated
    session.rollback()
    del kept


@pytest.mark.read_committed
@SERVERS
@pytest.mark.parametrize("use", ["statement", "another lock"])
def test_without_a_lock_it_is_sqlalchemys(session: Session, database: Database, use: str) -> None:
    session.get_one(Order, 1)
    kill(database, session.connection().exec_driver_sql(OWN_ID[database.name]).scalar_one())
    with pytest.raises(DBAPIError) as caught:
        USES[use](session)
    assert not isinstance(caught.value, LockLost)
    session.rollback()


@pytest.mark.read_committed
@SERVERS
def test_the_records(session: Session, database: Database) -> None:
    with recorded_locks() as locks:
        kept = lock_and_lose(session, database)
        with pytest.raises(LockLost):
            write(session)
        session.rollback()
    assert sorted((one.outcome, one.ended or "") for one in locks) == [
        ("granted", "lost"),
        ("lost", ""),
    ]
    del kept


@contextmanager
def killed_soon(database: Database, number: int) -> Any:
    """Kill the connection while it runs the statement of the block."""
    running = {
        "mysql": "SELECT COUNT(*) FROM information_schema.processlist "
        f"WHERE id = {number} AND info LIKE '%%SLEEP(%%'",
        "postgresql": "SELECT count(*) FROM pg_stat_activity "
        f"WHERE pid = {number} AND state = 'active'",
    }
    question = running.get(database.name, running["mysql"])

    def runs() -> bool:
        with database.observer().connect() as connection:
            return bool(connection.exec_driver_sql(question).scalar_one())

    def wait_and_kill() -> None:
        wait_until(runs, poll_seconds=0.02)
        kill(database, number)

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    yield
    thread.join()


@pytest.mark.read_committed
@SERVERS
def test_in_the_middle_of_a_statement(session: Session, database: Database, elsewhere: Run) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total = 31
    session.flush()
    number = session.connection().exec_driver_sql(OWN_ID[database.name]).scalar_one()
    sleep = "SELECT pg_sleep(60)" if database.name == "postgresql" else "SELECT SLEEP(60)"
    with killed_soon(database, number), pytest.raises(LockLost):
        session.execute(sa.text(sleep))
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


IDLE = ("idle_in_transaction_session_timeout", "transaction_timeout")


@pytest.mark.read_committed
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("limit", IDLE)
@pytest.mark.parametrize("use", ["statement", "flush", "commit"])
def test_the_servers_own_limit(
    database: Database, session: Session, other: Session, elsewhere: Run, limit: str, use: str
) -> None:
    """The server reports that it ended the transaction, so the COMMIT was not done."""
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.flush()
    version = session.connection().dialect.server_version_info
    if limit == "transaction_timeout" and version is not None and version < (17,):
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    if limit == "transaction_timeout" and database.column == PGPOOL:
        pytest.skip("pgpool-II does not notice it, and never answers: see docs/poolers.md")
    session.execute(sa.text(f"SET LOCAL {limit} = '100ms'"))
    assert soon_free(other)
    if use == "commit" and database.column.startswith("pgbouncer"):
        # PgBouncer adds its own error to the server's, and psycopg reports neither: docs/poolers.md
        with pytest.raises(DBAPIError, match="2 results from command 'COMMIT'") as reported:
            session.commit()
        assert reported.value.connection_invalidated
    else:
        with pytest.raises(
            LockLost, match="the server has ended the transaction, which took"
        ) as caught:
            {**USES, "commit": Session.commit}[use](session)
        assert caught.value.ident == 1
    assert not session.held_locks
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


# --------------------------------------------------------------------------------------------------
# Savepoints of a session that end with the transaction, through a statement of the program.
#
# SQLAlchemy stops at the first savepoint that the server refuses.  The session rolls back the
# rest, so that every connection returns to its pool.

Use = Callable[[Session], object]


def text(*statements: str) -> Use:
    return lambda session: [session.execute(sa.text(one)) for one in statements]


def leave_block(session: Session) -> None:
    with session:
        pass


WAYS: dict[str, Use] = {
    "COMMIT": text("COMMIT"),
    "ROLLBACK": text("ROLLBACK"),
    "of the Connection": lambda session: session.connection().execute(sa.text("COMMIT")),
    "of the driver": lambda session: session.connection().connection.commit(),
}
OTHERS: dict[str, Use] = {"COMMIT and BEGIN": text("COMMIT", "BEGIN")}
DDL: dict[str, Use] = {"DDL": text("CREATE TABLE IF NOT EXISTS lk_customer (id INT)")}
ENDS: dict[str, Use] = {
    "close": lambda session: session.close(),
    "rollback": lambda session: session.rollback(),
    "reset": lambda session: session.reset(),
    "invalidate": lambda session: session.invalidate(),
    "block": leave_block,
}
FAILURES: dict[str, Use] = {
    "commit": lambda session: session.commit(),
    "commit of the savepoint": lambda session: session.begin_nested().commit(),
    "rollback of the savepoint": lambda session: session.begin_nested().rollback(),
}


def lose(session: Session, way: Use, depth: int) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    for _ in range(depth):
        session.begin_nested()
        session.scalar(sa.select(Customer.id))
    way(session)


def check_ended(session: Session, engine: sa.Engine) -> None:
    assert not session.in_transaction()
    assert not session.held_locks
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    session.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    session.close()


@pytest.mark.each_value
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_session_ends(engine: sa.Engine, way: str, end: str, depth: int) -> None:
    session = Session(engine)
    lose(session, WAYS[way], depth)
    with pytest.raises(LockLost, match="Order 1: ") as caught:
        ENDS[end](session)
    assert isinstance(caught.value.__cause__, engine.dialect.loaded_dbapi.Error)
    check_ended(session, engine)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("end", ENDS)
def test_a_statement_that_commits_by_itself(engine: sa.Engine, end: str) -> None:
    session = Session(engine)
    lose(session, DDL["DDL"], 2)
    with pytest.raises(LockLost, match="Order 1: "):
        ENDS[end](session)
    check_ended(session, engine)


@pytest.mark.parametrize("end", ENDS)
def test_another_transaction_has_begun(engine: sa.Engine, end: str) -> None:
    session = Session(engine)
    lose(session, OTHERS["COMMIT and BEGIN"], 2)
    with pytest.raises(DBAPIError):
        ENDS[end](session)
    check_ended(session, engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", FAILURES)
def test_close_after_a_failure(engine: sa.Engine, failure: str, way: str) -> None:
    session = Session(engine)
    lose(session, WAYS[way], 2)
    with suppress(DBAPIError):
        FAILURES[failure](session)
    with suppress(SQLAlchemyError):
        session.close()
    check_ended(session, engine)


def test_nothing_was_locked(engine: sa.Engine) -> None:
    session = Session(engine)
    for _ in range(2):
        session.begin_nested()
        session.scalar(sa.select(Customer.id))
    text("COMMIT")(session)
    with pytest.raises(DBAPIError) as caught:
        session.close()
    assert not isinstance(caught.value, LockLost)
    check_ended(session, engine)
