"""A statement that was slow without waiting for a lock does not raise LockNotAvailable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import aliased

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.asyncio.drivers import in_a_loop, opened, url_for
from tests.integration.timeouts.ways import WAYS, hold
from tests.support.actors import Actor
from tests.support.databases import PGBOUNCERS, PIPELINED, Database
from tests.support.models import Order
from tests.support.poolers import SETS_CONNECTION
from tests.support.waits import wait_until_blocked

ForUpdate = LockOptions.ForUpdate
Session = LockingSession

#: A condition that takes a while for each row, and its value if nothing ends it.
SLEEP = {
    "postgresql": "pg_sleep({}) IS NOT NULL",
    "mysql": "SLEEP({}) = 0",
    "mariadb": "SLEEP({}) = 0",
}
NUMBERS = {"postgresql": "57014", "mysql": 3024, "mariadb": 1969}

#: This takes longer than a moment; MySQL does not report a SLEEP by key as too slow.
BUSY = "BENCHMARK(19999999, SHA2('a', 256)) = 0"

pytestmark = [pytest.mark.databases(*SLEEP), SETS_CONNECTION]


@pytest.fixture
def limited(database: Database, make_session: Callable[..., Session]) -> Session:
    """Open a session whose server ends a statement after 0.2 s."""
    session = make_session()
    set_limit = {
        "postgresql": "SET statement_timeout = 200",
        "mysql": "SET SESSION max_execution_time = 200",
        "mariadb": "SET SESSION max_statement_time = 0.2",
    }

    def connected(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(set_limit[database.name])
        connection.commit()

    event.listen(session.get_bind(), "connect", connected)
    return session


def slow(session: Session, database: Database, seconds: float = 20, **how: Any) -> Any:
    """Read a set, slowly."""
    condition = sa.text(SLEEP[database.name].format(seconds))
    return session.scalars(session.entity_set(Order, ForUpdate, **how).where(condition)).all()


def number_of(error: OperationalError) -> Any:
    assert error.orig is not None
    first = error.orig.args[0]
    return first if isinstance(first, int) else getattr(error.orig, "sqlstate", None)


@pytest.mark.databases("mysql", "mariadb")  # PostgreSQL's limit applies only to locks
def test_one_that_is_slow_under_a_limit_of_ours(database: Database, session: Session) -> None:
    with pytest.raises(OperationalError) as caught:
        slow(session, database, lock_timeout=0.3)
    assert not isinstance(caught.value, LockNotAvailable)
    assert number_of(caught.value) == NUMBERS[database.name]
    assert not session.in_transaction()


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("name", WAYS)
def test_what_a_busy_server_has_ended_after_a_moment_is_granted(
    session: Session, name: str
) -> None:
    sent: list[str] = []

    def slow_down_the_first(_: object, __: object, statement: str, how: Any, *___: object) -> Any:
        if "FOR UPDATE" in statement:
            sent.append(statement)
            if len(sent) == 1:
                if "WHERE " in statement:
                    return statement.replace("WHERE ", f"WHERE {BUSY} AND ", 1), how
                return re.sub("(?=ORDER BY|FOR UPDATE)", f"WHERE {BUSY} ", statement, count=1), how
        return statement, how

    event.listen(session.get_bind(), "before_cursor_execute", slow_down_the_first, retval=True)
    WAYS[name](session, lock_timeout=0.01)
    assert len(sent) > 1
    assert session.held_locks or name == "locked"
    session.rollback()


@pytest.mark.databases("postgresql")
def test_the_limit_of_postgresql_is_for_locks_alone(database: Database, session: Session) -> None:
    assert len(slow(session, database, 0.05, lock_timeout=0.001)) == 2


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("comment", ["", "/* a report */"])
def test_the_last_try_has_the_time_of_a_busy_server(session: Session, comment: str) -> None:
    orders = session.entity_set(Order, ForUpdate, lock_timeout=0.001).suffix_with(comment)
    assert len(session.scalars(orders.where(sa.text("SLEEP(0.02) = 0"))).all()) == 2


def test_one_that_is_slow_under_a_limit_of_the_server(database: Database, limited: Session) -> None:
    with pytest.raises(OperationalError) as caught:
        slow(limited, database)
    assert not isinstance(caught.value, LockNotAvailable)
    assert number_of(caught.value) == NUMBERS[database.name]
    assert not limited.held_locks


def test_one_that_the_server_has_ended_while_it_waited(limited: Session, other: Session) -> None:
    hold(other)
    for name in ("entity_set", "set of two tables", "get_entity", "get_entities"):
        with pytest.raises(LockNotAvailable):
            WAYS[name](limited)


@pytest.mark.databases("postgresql")
def test_a_limit_of_ours_that_is_longer_does_not_end_it(limited: Session, other: Session) -> None:
    """PostgreSQL ends the whole statement, and says so; the others use only our limit."""
    hold(other)
    with pytest.raises(LockNotAvailable, match="statement_timeout or a cancel request ended"):
        limited.get_entity(Order, 1, ForUpdate, lock_timeout=29)


@pytest.mark.databases("mysql", "mariadb")
def test_a_limit_of_ours_takes_the_place_of_the_servers(
    limited: Session, alice: Actor[Session], dave: Callable[..., Actor[Session]]
) -> None:
    alice.does(hold)
    bert = dave(lambda: limited)
    queued = bert.starts(lambda session: WAYS["entity_set"](session, lock_timeout=29.5))
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    with pytest.raises(LockNotAvailable), LockingSession(limited.get_bind()) as session:
        session.get_entity(Order, 1, ForUpdate)  # it came later, with the server's limit
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    assert len(queued.result()) == 2


def test_one_that_the_server_has_ended_behind_another_that_waits(
    limited: Session, alice: Actor[Session], bob: Actor[Session]
) -> None:
    alice.does(hold)
    queued = bob.starts(hold)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    for name in ("get_entity", "of two tables", "get_entities", "some of two tables"):
        with pytest.raises(LockNotAvailable):
            WAYS[name](limited)
    alice.does(lambda session: session.rollback())
    queued.result()


@pytest.mark.databases("mysql", "mariadb")
def test_what_was_let_go_at_the_last_moment_is_granted(
    session: Session, other: Session, database: Database
) -> None:
    hold(other)
    errors: list[Any] = []

    def let_go(context: Any) -> None:
        errors.append(context.original_exception.args[0])
        other.rollback()

    with heard(session.get_bind().dialect, "handle_error", let_go):
        orders = session.entity_set(Order, ForUpdate, lock_timeout=0.2)
        assert len(session.scalars(orders).all()) == 2
    assert errors == [NUMBERS[database.name]]
    assert list(session.held_locks) == [(Order, (1,)), (Order, (2,))]


@contextmanager
def heard(target: Any, name: str, listener: Callable[..., Any]) -> Iterator[None]:
    event.listen(target, name, listener)
    yield
    event.remove(target, name, listener)


@pytest.mark.read_committed
@pytest.mark.databases("mysql", "mariadb")
def test_a_slow_one_leaves_the_callers_transaction_refusing(
    database: Database, session: Session
) -> None:
    """Rows locked by the statement stay locked, and the session cannot tell which."""
    with session.begin():
        session.connection()
        with pytest.raises(OperationalError):
            slow(session, database, lock_timeout=0.3)
        with pytest.raises(sa.exc.PendingRollbackError):
            session.scalar(sa.text("SELECT 1"))
        session.rollback()


def test_a_join_that_is_slow_is_none_either(limited: Session, database: Database) -> None:
    other = aliased(Order)
    statement = limited.entity_set(Order, ForUpdate).join(other, other.id != Order.id)
    condition = sa.text(SLEEP[database.name].format(20))
    with pytest.raises(OperationalError) as caught:
        limited.scalars(statement.where(condition)).all()
    assert not isinstance(caught.value, LockNotAvailable)


@pytest.mark.not_databases(PIPELINED, *PGBOUNCERS)  # they refuse a setting of the connection
@pytest.mark.databases("postgresql")
@in_a_loop
async def test_asyncpg_tells_the_difference_too(documents: Database, other: Session) -> None:
    settings = {"connect_args": {"server_settings": {"statement_timeout": "200"}}}
    async with opened(url_for(documents, "asyncpg"), **settings) as session:
        condition = sa.text(SLEEP["postgresql"].format(20))
        orders = session.entity_set(Order, ForUpdate)
        with pytest.raises(sa.exc.DBAPIError) as caught:
            await session.scalars(orders.where(condition))
        assert not isinstance(caught.value, LockNotAvailable)
        hold(other)
        with pytest.raises(LockNotAvailable):
            await session.scalars(orders)
        with pytest.raises(LockNotAvailable):
            await session.get_entity(Order, 1, ForUpdate)
