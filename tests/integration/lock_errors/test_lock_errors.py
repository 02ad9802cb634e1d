"""A scene for a lock that is not granted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from sa_doclock import DocLockError, LockingSession, LockOptions
from sa_doclock.dialects import strategy_classes, strategy_for
from sa_doclock.dialects.base import Ends, LockStrategy
from sa_doclock.dialects.mssql import SQLServerLocks
from tests.integration.lock_errors.rows import MSSQL, ROWS, Left, Next, Row, Where
from tests.integration.lock_errors.situations import (
    SITUATIONS,
    STATEMENT_LIMIT,
    Scene,
    Session,
    attempt,
    begins,
    look,
    rolls_back_to_savepoint,
    sets,
)
from tests.sql.driver import Script
from tests.sql.models import Customer, Order
from tests.sql.native import odbc18
from tests.sql.servers import serving
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Voucher
from tests.support.rows import rows
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.each_value


@pytest.fixture
def scene(documents: Database, make_engine: Callable[..., sa.Engine]) -> Iterator[Scene]:
    """Set the scene; all actors leave together, so none waits for another's lock."""
    with Scene(documents, make_engine).open() as scene:
        yield scene


# --------------------------------------------------------------------------------------------------
# Every row of docs/errors.md, on the database that it is about: tests/integration/lock_errors/rows.py.

Victim = Actor[Session]


def cases(database: str, column: str) -> pytest.MarkDecorator:
    """Run the test for each row of this column, each way to meet it, with a savepoint and without."""
    found = [
        pytest.param(row, where, savepoint, id=f"{row.number} {row.situation}, {where.value}{at}")
        for row in ROWS[database]
        if not row.columns or column in row.columns
        for where, savepoint, at in _ways(row)
    ]
    return pytest.mark.parametrize(("row", "where", "savepoint"), found)


def _ways(row: Row) -> Iterator[tuple[Where, bool, str]]:
    for where in row.where:
        yield where, False, ""
    # The server does not care what has failed; a COMMIT has no savepoints.
    if row.where[0] is not Where.COMMIT:
        yield row.where[0], True, ", in a savepoint"


@pytest.mark.databases("postgresql")
@cases("postgresql", "postgresql")
def test_postgresql(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("mysql")
@cases("mysql", "mysql")
def test_mysql(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("mariadb")
@cases("mariadb", "mariadb")
def test_mariadb(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@cases("sqlite", "sqlite")
def test_sqlite(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("sqlite-journal")
@cases("sqlite", "sqlite-journal")
def test_sqlite_journal(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


def check(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    """Make the error, and see what the row says of it."""
    victim, error, winner = SITUATIONS[row.situation](scene, where, savepoint)
    assert type(error) is row.error
    assert isinstance(error, DocLockError)
    assert error.retryable is row.do.retryable
    assert row.number in numbers_of(error, victim.does(strategy_of))
    assert_left(scene, victim, left_by(row, where), savepoint=savepoint)
    goes_on = where is Where.STATEMENT and row.left in (Left.REST, Left.SNAPSHOT)
    assert victim.does(refuses) is not goes_on
    if savepoint:
        met = victim.does(rolls_back_to_savepoint)
        assert type(met) is (type(None) if row.left.savepoint_helps else row.error)
        assert victim.does(refuses) is not row.left.savepoint_helps
        if row.left.savepoint_helps:
            assert_left(scene, victim, Next.SAME)
    if row.left is Left.SNAPSHOT and victim.does(refuses) is False:
        with pytest.raises(row.error):
            victim.does(attempt(Where.STATEMENT, 1))
    victim.does(lambda session: session.rollback())
    assert victim.does(refuses) is False
    assert_left(scene, victim, Next.NEW)
    if winner is not None:
        winner.result()


def left_by(row: Row, where: Where) -> Next:
    """Return the next statement's result; Session itself rolls back when a flush has failed."""
    return Next.NEW if where in (Where.FLUSH, Where.COMMIT) else row.left.next_statement


def assert_left(scene: Scene, victim: Victim, expected: Next, *, savepoint: bool = False) -> None:
    """Look whether the next statement sees what was written, and another what was locked."""
    info = victim.does(lambda session: session.info)
    found = victim.does(look)
    assert found is expected or found is None
    if info["own"] != "read":
        kept = expected is Next.SAME or (expected is Next.REFUSED and savepoint)
        assert scene.is_held(info["number"]) is kept
        assert kept or victim.does(lambda session: not session.held_locks)


def strategy_of(session: Session) -> LockStrategy:
    strategy = strategy_for(session.get_bind())
    assert strategy is not None
    return strategy


def refuses(session: Session) -> bool:
    """Return whether the session lets nothing more through."""
    try:
        session.scalars(sa.select(Voucher.total)).all()
    except InvalidRequestError:  # PendingRollbackError is one
        return True
    return False


def numbers_of(error: BaseException | None, strategy: LockStrategy) -> set[Any]:
    """The server's numbers: of the driver's errors that have led to this one."""
    found = set()
    while error is not None:
        found.add(strategy.errors.native_code(error))
        error = error.__context__
    return found


# --------------------------------------------------------------------------------------------------
# The tables of docs/errors.md leave no number out.


@pytest.mark.parametrize("name", ROWS)
def test_every_number_of_a_database_has_its_rows(name: str) -> None:
    strategy = strategy_classes()[name]
    # An error of a pooler in between is no situation of the server: tests/integration/poolers has it.
    assert {row.number: row.error for row in ROWS[name]} == {
        number: found.error or found.in_lock
        for number, found in strategy.errors.codes.items()
        if (found.error or found.in_lock) and not found.advice
    }


@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_failure_elsewhere_comes_from_a_lock_alone(name: str) -> None:
    strategy = strategy_classes()[name]
    for row in ROWS[name]:
        assert row.where == (Where.LOCK,) or strategy.errors[row.number].error, row


def test_every_situation_is_in_a_row() -> None:
    named = {row.situation for name, rows in ROWS.items() if name != "mssql" for row in rows}
    assert named == set(SITUATIONS)


# --------------------------------------------------------------------------------------------------
# Errors that look as if they were about a lock, and are SQLAlchemy's own.

READ = sa.text("SELECT total FROM lk_order WHERE id = 1 FOR SHARE")
READ_ON_MARIADB = sa.text("SELECT total FROM lk_order WHERE id = 1 LOCK IN SHARE MODE")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_limit_that_ends_a_statement_of_the_users(scene: Scene) -> None:
    scene.holder()
    victim = scene.victim()
    victim.does(begins(savepoint=False))
    victim.does(sets(STATEMENT_LIMIT[scene.database.name]))
    read = READ_ON_MARIADB if scene.database.name == "mariadb" else READ
    error = victim.starts(lambda session: session.execute(read)).exception()
    assert isinstance(error, DBAPIError)
    assert not isinstance(error, DocLockError)


@pytest.mark.databases("mysql", "mariadb")
def test_kill_query(scene: Scene) -> None:
    holder, victim = scene.holder(), scene.victim()
    queued = victim.starts(attempt(Where.LOCK, 1))
    wait_until_blocked(waiter=victim, holder=holder, step=queued)
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql(f"KILL QUERY {victim.connection_id()}")
    error = queued.exception()
    assert isinstance(error, DBAPIError)
    assert not isinstance(error, DocLockError)
    assert error.orig is not None
    assert error.orig.args[0] == 1317


# --------------------------------------------------------------------------------------------------
# SQL Server's rows of docs/errors.md: a scripted driver raises the number in each place.
#
# That the server raises it when the row says so, and what it leaves, is Microsoft's word.


@pytest.fixture
def scripted() -> Iterator[tuple[LockingSession, Script]]:
    """Open a session on a scripted server, in a transaction that has read something."""
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        session.begin()
        session.get(Customer, 1)
        yield session, script


def attempt_mssql(session: LockingSession, where: Where) -> None:
    if where is Where.LOCK:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    elif where is Where.STATEMENT:
        session.execute(update(Order).values(total=7))
    else:
        session.get_one(Order, 1).total = 7
        session.flush()


@rows("savepoint", [False, True])
@rows(
    "row, where",
    [(row, where) for row in MSSQL for where in row.where],
    ids=lambda one: str(one.number) if isinstance(one, Row) else one.value,
)
def test_mssql(
    scripted: tuple[LockingSession, Script], row: Row, where: Where, savepoint: bool
) -> None:
    session, script = scripted
    inner = session.begin_nested() if savepoint else None
    mark = "FROM shop_order" if where is Where.LOCK else "UPDATE shop_order"
    failure = odbc18(int(row.number))
    script.failures.append((mark, failure))
    with pytest.raises(DocLockError) as caught:
        attempt_mssql(session, where)
    assert type(caught.value) is row.error
    assert caught.value.retryable is row.do.retryable
    assert refuses_mssql(session) is (where is not Where.STATEMENT or row.left is Left.GONE)
    if inner is not None and row.left is not Left.GONE:
        inner.rollback()
        assert not refuses_mssql(session)
    elif inner is not None:
        with suppress(row.error):  # there is no savepoint any more
            inner.rollback()
        assert refuses_mssql(session)
    session.rollback()
    session.begin()  # as the fixture gives it
    session.get(Customer, 1)
    assert not refuses_mssql(session)


def refuses_mssql(session: LockingSession) -> bool:
    """Return whether the session lets nothing more through."""
    try:
        session.scalars(select(Customer.name)).all()
    except InvalidRequestError:  # PendingRollbackError is one
        return True
    return False


@rows("row", MSSQL, ids=lambda row: str(row.number))
def test_nothing_is_left_of_a_transaction_that_the_strategy_calls_gone(row: Row) -> None:
    gone = SQLServerLocks.errors[row.number].ends is Ends.TRANSACTION
    assert (row.left is Left.GONE) is gone
