"""A registered statement runs before the connection returns to its pool, or the pool closes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession
from sa_doclock.pool import ExecuteStatement, execute_statements_now, on_return
from tests.integration.locking.steps import recorded
from tests.integration.named_locks.conftest import KEY

pytestmark = pytest.mark.databases("mysql", "mariadb")

Held = Callable[[], bool]


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine]) -> Iterator[sa.Engine]:
    engine = make_engine(pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


FAILING = "DO NO_SUCH_FUNCTION()"


def setting_of(connection: sa.Connection) -> object:
    return connection.exec_driver_sql("SELECT @doclock").scalar()


def setting(engine: sa.Engine) -> object:
    with engine.connect() as connection:
        return setting_of(connection)


def test_the_last_registered_runs_first(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        on_return(connection, ExecuteStatement("SET @doclock = 'first'"))
        on_return(connection, ExecuteStatement("SET @doclock = 'second'"))
    assert setting(engine) == "first"


def test_it_runs_once(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        on_return(connection, ExecuteStatement("SET @doclock = COALESCE(@doclock, 0) + 1"))
    for _ in range(2):
        assert setting(engine) == 1


def test_where_it_fails_the_connection_is_closed(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        before = connection.connection.driver_connection
        connection.exec_driver_sql("SET @doclock = 'set'")
        on_return(connection, ExecuteStatement(FAILING))
    with engine.connect() as connection:
        assert connection.connection.driver_connection is not before
        assert setting_of(connection) is None


def test_at_once_on_a_connection_that_stays(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        execute_statements_now(connection)  # nothing registered
        on_return(connection, ExecuteStatement("SET @doclock = 1"))
        execute_statements_now(connection)
        assert setting_of(connection) == 1
        on_return(connection, ExecuteStatement(FAILING))
        execute_statements_now(connection)
        assert connection.invalidated


def test_a_lent_connection_is_without_it_when_its_transaction_ends(
    engine: sa.Engine, held_there: Held
) -> None:
    for end in (LockingSession.commit, LockingSession.rollback, LockingSession.close):
        with engine.connect() as connection:
            session = LockingSession(connection)
            session.lock_key(KEY)
            assert held_there()
            end(session)
            assert not held_there(), end
            assert not connection.closed


def test_a_transaction_of_the_lenders_keeps_it_to_its_end(
    make_engine: Callable[..., sa.Engine], held_there: Held
) -> None:
    engine = make_engine(isolation_level="READ COMMITTED")
    with engine.connect() as connection, connection.begin():
        with LockingSession(connection) as session:
            session.lock_key(KEY)
            session.commit()
        assert held_there()
    assert not held_there()


def test_the_commit_comes_before_the_release(engine: sa.Engine, session: LockingSession) -> None:
    sent: list[str] = []
    session.lock_key(KEY)
    event.listen(engine, "commit", lambda _: sent.append("commit"))
    event.listen(engine, "reset", lambda *_: sent.append("reset"))
    session.commit()
    assert sent == ["commit", "reset"]


def test_others_pay_nothing(engine: sa.Engine, session: LockingSession) -> None:
    session.lock_key(KEY)
    session.rollback()
    with recorded(engine) as statements, engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    assert statements == ["SELECT 1"]
