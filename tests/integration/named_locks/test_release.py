"""Whatever ends a transaction, its connection returns to the pool without the key."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.named_locks.conftest import KEY
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.poolers import ENDS_CONNECTION
from tests.support.waits import wait_until

Make = Callable[[], LockingSession]
Held = Callable[[], bool]


def commit(make: Make) -> None:
    with make() as session:
        session.lock_key(KEY)
        session.commit()


def save_changes(make: Make) -> None:
    with make() as session:
        session.lock_key(KEY)
        session.save_changes()


def release_locks(make: Make) -> None:
    with make() as session:
        session.lock_key(KEY)
        session.release_locks()


def leave_the_block(make: Make) -> None:
    with make() as session, session.begin():
        session.lock_key(KEY)


def close(make: Make) -> None:
    session = make()
    session.lock_key(KEY)
    session.close()


def reset(make: Make) -> None:
    session = make()
    session.lock_key(KEY)
    session.reset()


def invalidate(make: Make) -> None:
    session = make()
    session.lock_key(KEY)
    session.invalidate()


def forget_the_session(make: Make) -> None:
    session = make()
    session.lock_key(KEY)
    del session
    gc.collect()


def interrupt(make: Make) -> None:
    with suppress(KeyboardInterrupt), make() as session, session.begin():
        session.lock_key(KEY)
        raise KeyboardInterrupt


def take_it_twice_with_a_savepoint_between(make: Make) -> None:
    with make() as session, session.begin():
        with suppress(LookupError), session.begin_nested():
            session.lock_key(KEY)
            raise LookupError
        session.lock_key(KEY)
        session.lock_key(KEY)


def fail_in_a_flush(make: Make) -> None:
    with make() as session:
        session.lock_key(KEY)
        session.add(Order(id=1, total=1))
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()


def write_under_it(make: Make) -> None:
    with make() as session, session.begin():
        session.lock_key(KEY)
        session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31


ENDS = (
    commit,
    save_changes,
    release_locks,
    leave_the_block,
    close,
    reset,
    invalidate,
    forget_the_session,
    interrupt,
    take_it_twice_with_a_savepoint_between,
    fail_in_a_flush,
    write_under_it,
)


@ENDS_CONNECTION
def test_nothing_is_left_of_it(make_engine: Callable[..., sa.Engine], held_there: Held) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)

    def make() -> LockingSession:
        return LockingSession(engine)

    for end in ENDS:
        end(make)
        assert engine.pool.checkedout() == 0, end  # type: ignore[attr-defined]
        with engine.connect():
            if end is invalidate:  # it closed the connection, which a server may notice late
                wait_until(lambda: not held_there())
            assert not held_there(), end


@ENDS_CONNECTION
def test_it_is_there_until_then(session: LockingSession, held_there: Held) -> None:
    assert not held_there()
    session.lock_key(KEY)
    assert held_there()
    session.commit()
    assert not held_there()


@ENDS_CONNECTION
def test_it_is_gone_when_on_commit_functions_are_called(
    session: LockingSession, held_there: Held
) -> None:
    seen: list[bool] = []
    session.lock_key(KEY)
    session.on_commit(lambda: seen.append(held_there()))
    session.commit()
    assert seen == [False]


@ENDS_CONNECTION
def test_a_failed_lock_leaves_nothing(
    make_engine: Callable[..., sa.Engine], other: LockingSession, held_there: Held
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    for lock_timeout in (0, 0.1):
        other.lock_key(KEY)
        with LockingSession(engine) as session, pytest.raises(LockNotAvailable):
            session.lock_key(KEY, lock_timeout=lock_timeout)
        with engine.connect():
            assert held_there()
            other.rollback()
            assert not held_there()


@ENDS_CONNECTION
def test_without_a_pool(make_engine: Callable[..., sa.Engine], held_there: Held) -> None:
    engine = make_engine(poolclass=NullPool)
    for _ in range(2):
        with LockingSession(engine) as session:
            session.lock_key(KEY)
            assert held_there()
        assert not held_there()


@ENDS_CONNECTION
def test_engines_with_other_options_and_pools_made_anew(
    make_engine: Callable[..., sa.Engine], held_there: Held
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    optioned: Any = engine.execution_options(logging_token="other")
    for one in (optioned, engine, optioned):
        with LockingSession(one) as session:
            session.lock_key(KEY)
        with engine.connect():
            assert not held_there()
        engine.dispose()


@ENDS_CONNECTION
@pytest.mark.read_committed
def test_a_pool_that_is_disposed_of_meanwhile(engine: sa.Engine, held_there: Held) -> None:
    with LockingSession(engine) as session:
        session.connection()
        pool = engine.pool
        engine.dispose()
        session.lock_key(KEY)
        assert held_there()
    assert not held_there()
    assert engine.pool is not pool
    pool.dispose()


@ENDS_CONNECTION
@pytest.mark.not_databases("sqlite")  # no server can end it
def test_a_lost_connection_has_lost_it(
    database: Database, session: LockingSession, held_there: Held
) -> None:
    kill = {"postgresql": "SELECT pg_terminate_backend({})"}.get(database.name, "KILL {}")
    session.lock_key(KEY)
    number = session.connection().connection.info["server_id"]
    with database.observer().connect() as connection:
        connection.exec_driver_sql(kill.format(number))
    with pytest.raises(sa.exc.DBAPIError):
        session.scalar(sa.text("SELECT 1"))
    with pytest.raises(sa.exc.PendingRollbackError):
        session.lock_key(KEY)
    session.rollback()
    session.lock_key(KEY)
    assert held_there()


# --------------------------------------------------------------------------------------------------
# GET_LOCK on its own: each test shows a trap that lock_key() avoids.

TAKE = sa.text("SELECT GET_LOCK(CONCAT(DATABASE(), :name), :seconds)")


def take(connection: sa.Connection, seconds: float = 0, name: str = f".{KEY}") -> object:
    return connection.execute(TAKE, {"name": name, "seconds": seconds}).scalar()


@pytest.mark.databases("mysql", "mariadb")
def test_it_survives_commit_rollback_and_the_pool(
    engine: sa.Engine, held_there: Callable[[], bool]
) -> None:
    with engine.connect() as connection:
        assert take(connection) == 1
        connection.commit()
        connection.rollback()
        assert held_there()
    assert held_there()
    engine.dispose()


@pytest.mark.databases("mysql", "mariadb")
def test_it_is_to_be_released_as_often_as_it_was_taken(
    engine: sa.Engine, held_there: Callable[[], bool]
) -> None:
    assert not held_there()
    release = f"SELECT RELEASE_LOCK(CONCAT(DATABASE(), '.{KEY}'))"
    with engine.connect() as connection:
        assert [take(connection), take(connection)] == [1, 1]
        released = [connection.exec_driver_sql(release).scalar() for _ in range(3)]
    assert released == [1, 1, None]


@pytest.mark.databases("mysql", "mariadb")
def test_no_limit_is_for_ever_or_an_error(database: Database, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert take(connection, -1, "for.ever") == (1 if database.name == "mysql" else None)
    engine.dispose()


@pytest.mark.databases("mysql", "mariadb")
def test_a_long_name_is_an_error(database: Database, engine: sa.Engine) -> None:
    room = {"mysql": 64, "mariadb": 192}[database.name]
    with engine.connect() as connection:
        room -= len(str(connection.exec_driver_sql("SELECT DATABASE()").scalar()))
        assert take(connection, name="x" * room) == 1
        with pytest.raises(DBAPIError):
            take(connection, name="x" * (room + 1))
    engine.dispose()


@pytest.mark.databases("mysql", "mariadb")
def test_names_that_differ_in_capitals_are_one_on_mysql(
    database: Database, engine: sa.Engine
) -> None:
    with engine.connect() as one, engine.connect() as other:
        assert take(one, name="user:ann") == 1
        assert take(other, name="user:Ann") == (0 if database.name == "mysql" else 1)
    engine.dispose()
