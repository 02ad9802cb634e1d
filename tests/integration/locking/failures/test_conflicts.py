"""Conflicts that the server detects only at a write or at the commit raise the same errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    SnapshotConflict,
)
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.integration.locking.connections import set_patience
from tests.integration.locking.steps import finds_held
from tests.integration.questions.conftest import run_on, url_of
from tests.support.databases import PIPELINED, Database
from tests.support.models import Customer, Order
from tests.support.poolers import SETS_CONNECTION
from tests.support.rows import rows

pytestmark = pytest.mark.quick


Session = LockingSession
Run = Callable[..., list[Any]]
MakeSession = Callable[..., LockingSession]

tells_517 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="sqlite3 tells no error numbers before Python 3.11"
)

NAMES = sa.select(Customer.id, Customer.name).order_by(Customer.id)
RENAMED = sa.update(Customer).where(Customer.id == 1).values(name="by another")


def rename(session: Session, name: str) -> None:
    session.get_one(Customer, 1).name = name


def is_lenient(elsewhere: Run) -> bool:
    """Return whether MariaDB lets a transaction write rows that it has not seen."""
    found = elsewhere(sa.text("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"))
    return found != [("innodb_snapshot_isolation", "ON")]  # none before 10.6.18


@pytest.mark.databases("postgresql", "mariadb", "mssql")
def test_a_flush_over_what_another_has_written(
    database: Database, make_session: MakeSession, elsewhere: Run
) -> None:
    if database.name == "mariadb" and is_lenient(elsewhere):
        pytest.skip("innodb_snapshot_isolation is off, as before MariaDB 11.6.2")
    level = "SNAPSHOT" if database.name == "mssql" else "REPEATABLE READ"
    session = make_session(isolation_level=level)
    rename(session, "mine")
    elsewhere(RENAMED)
    with pytest.raises(SnapshotConflict, match=f"the transaction on {database.name}: ") as caught:
        session.flush()
    assert caught.value.retryable
    assert caught.value.lock is None
    with pytest.raises(PendingRollbackError):
        session.execute(sa.update(Customer).values(name="escaped"))
    session.rollback()
    assert elsewhere(NAMES) == [(1, "by another"), (2, "Ben")]


@pytest.mark.databases("postgresql", "mariadb")
def test_a_plain_statement_over_what_another_has_written(
    database: Database, make_session: MakeSession, elsewhere: Run
) -> None:
    if database.name == "mariadb" and is_lenient(elsewhere):
        pytest.skip("innodb_snapshot_isolation is off, as before MariaDB 11.6.2")
    session = make_session(isolation_level="REPEATABLE READ")
    session.execute(sa.update(Customer).where(Customer.id == 2).values(name="before"))
    session.scalars(sa.select(Customer.name)).all()
    elsewhere(RENAMED)
    mine = sa.update(Customer).where(Customer.id == 1).values(name="mine")
    with pytest.raises(SnapshotConflict):
        session.execute(mine)
    for act in (lambda: session.execute(mine), session.commit):
        with pytest.raises(PendingRollbackError):
            act()
    session.rollback()
    assert elsewhere(NAMES) == [(1, "by another"), (2, "Ben")]


@pytest.mark.databases("postgresql")
def test_a_commit_that_is_not_serializable(make_session: MakeSession, elsewhere: Run) -> None:
    one = make_session(isolation_level="SERIALIZABLE")
    two = make_session(isolation_level="SERIALIZABLE")
    for session in (one, two):
        session.scalars(sa.select(Customer.name)).all()
    for session, ident in ((one, 1), (two, 2)):
        session.get_one(Customer, ident).name = "mine"
        session.flush()
    one.save_changes()
    with pytest.raises(SnapshotConflict, match="the transaction on postgresql"):
        two.save_changes()
    with pytest.raises(InvalidRequestError):  # a PendingRollbackError is a subclass
        two.scalar(NAMES)
    two.rollback()
    assert elsewhere(NAMES) == [(1, "mine"), (2, "Ben")]


@tells_517
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_flush_in_a_snapshot_of_sqlite(session: Session, elsewhere: Run) -> None:
    session.get_one_entity(Order, 1, LockOptions.SharedRead)
    rename(session, "mine")
    elsewhere(RENAMED)
    with pytest.raises(SnapshotConflict, match="on sqlite: changed by another") as caught:
        session.flush()
    assert caught.value.orig is not None
    session.rollback()
    assert elsewhere(NAMES) == [(1, "by another"), (2, "Ben")]


@tells_517
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_lock_in_a_snapshot_of_sqlite(make_session: MakeSession, elsewhere: Run) -> None:
    session = make_session()
    with session.begin():
        session.connection().exec_driver_sql("BEGIN")
        known = session.get_one(Customer, 1)
        elsewhere(RENAMED)
        with pytest.raises(SnapshotConflict, match="Order 1 FOR UPDATE on sqlite"):
            session.get_entity(Order, 1, LockOptions.ForUpdate)
        with pytest.raises(PendingRollbackError):
            session.refresh(known)
        session.rollback()


@pytest.mark.databases("sqlite-journal")
def test_a_commit_that_readers_do_not_let_through(
    engine: sa.Engine, session: Session, make_session: MakeSession, elsewhere: Run
) -> None:
    set_patience(engine, 0)
    reader = make_session()
    reader.get_one_entity(Order, 1, LockOptions.SharedRead)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    with pytest.raises(LockNotAvailable, match="Order 1 on sqlite: not granted") as caught:
        session.save_changes()
    assert (caught.value.entity, caught.value.ident, caught.value.lock) == (Order, 1, None)
    with pytest.raises(InvalidRequestError):
        session.scalar(NAMES)
    session.rollback()
    assert not session.held_locks
    reader.release_locks()
    assert not finds_held()(reader)  # SQLITE_BUSY leaves the transaction open
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    session.save_changes()


@SETS_CONNECTION
def test_a_flush_that_waits_too_long(
    engine: sa.Engine, session: Session, make_session: MakeSession, elsewhere: Run
) -> None:
    set_patience(engine, 1)
    holder = make_session()
    holder.get_one_entity(Customer, 1, LockOptions.ForUpdate)
    rename(session, "mine")
    with pytest.raises(
        LockNotAvailable, match=r"the transaction on .*: not granted within the serv"
    ):
        session.flush()
    session.rollback()
    holder.rollback()
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
    rename(session, "mine")
    session.save_changes()


# --------------------------------------------------------------------------------------------------
# The program's own error in a statement reaches the caller, and no lock is lost with it.
#
# Text outside the database's character set is such an error: a driver raises it before
# it sends anything.

ForUpdate = LockOptions.ForUpdate


def goes_on(session: LockingSession) -> bool:
    """Return whether the session holds its lock, on a connection that answers."""
    return (Order, (1,)) in session.held_locks and session.scalar(sa.text("SELECT 42")) == 42


@pytest.mark.databases("mysql", "mariadb")
@rows("charset", ["latin1", "cp1250", "greek"])
def test_a_text_that_cannot_be_encoded(documents: Database, charset: str) -> None:
    """These codecs are written in Python, not in C."""

    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, ForUpdate)
            with pytest.raises(UnicodeEncodeError):
                session.scalar(sa.text("SELECT :text"), {"text": "一"})
            assert goes_on(session)

    given = sa.make_url(documents.url).update_query_dict({"charset": charset})
    run_on(url_of(documents, "pymysql", given), play)


@pytest.mark.databases("mysql", "mariadb")
@rows("name", ["before_cursor_execute", "after_cursor_execute"])
@rows("number", [1053, 2006, 2027])
def test_a_key_error_with_the_number_of_a_lost_connection(
    engine: sa.Engine, name: str, number: int
) -> None:
    """Only a driver error carries a server code; other errors can hold the same number."""

    def look_up(*args: Any) -> None:
        if "4711" in args[2]:
            raise KeyError(number)

    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        event.listen(session.connection(), name, look_up)
        with pytest.raises(KeyError):
            session.scalar(sa.text("SELECT 4711"))
        assert goes_on(session)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_listener_that_has_invalidated_the_connection(engine: sa.Engine) -> None:
    class MistakeError(Exception):
        pass

    def give_up(connection: sa.Connection, _: Any, statement: str, *__: Any) -> None:
        if "4711" in statement:
            connection.invalidate()
            raise MistakeError

    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        event.listen(session.connection(), "before_cursor_execute", give_up)
        with pytest.raises(MistakeError):
            session.scalar(sa.text("SELECT 4711"))
        assert not session.held_locks
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        session.rollback()


# --------------------------------------------------------------------------------------------------
# Errors that do not concern the held document.

LIMIT = {"postgresql": "SET LOCAL lock_timeout = '50ms'", "mssql": "SET LOCK_TIMEOUT 50"}
LIMIT_ELSEWHERE = "SET SESSION innodb_lock_wait_timeout = 1"


@pytest.mark.not_databases("sqlite")  # there is one lock per file
@pytest.mark.read_committed
def test_a_row_that_is_not_available_is_not_the_one_that_is_held(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_entity(Order, 2, ForUpdate)
    session.get_entity(Order, 1, ForUpdate)
    connection = session.connection()
    connection.exec_driver_sql(LIMIT.get(database.name, LIMIT_ELSEWHERE))
    with pytest.raises(LockNotAvailable, match=r"^the transaction on ") as caught:
        session.execute(sa.update(Order).where(Order.id == 2).values(total=7))
    assert (caught.value.entity, caught.value.ident) == (None, None)
    session.invalidate()  # the connection ends with its limit


@pytest.mark.not_databases(PIPELINED)
@pytest.mark.databases("postgresql")
@in_a_loop
async def test_of_the_lender_between_two_transactions_it_is_nothing(documents: Database) -> None:
    url = url_for(documents, "asyncpg")  # it does not show whether it was aborted
    async with connected(url) as engine, engine.connect() as lent:
        session = AsyncLockingSession(bind=lent)
        await session.get_entity(Order, 1, ForUpdate)
        await session.commit()
        with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
            await lent.execute(sa.text("SELECT 1/0"))
        await lent.rollback()
        order = await session.get_one_entity(Order, 1, ForUpdate)
        order.total = 8
        await session.commit()
        assert not session.in_transaction()
        await session.close()
