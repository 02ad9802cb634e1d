"""GET_LOCK by itself: each test is a trap that lock_key() avoids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.integration.named_locks.keys import KEY
from tests.support.databases import Database

pytestmark = pytest.mark.databases("mysql", "mariadb")

TAKE = sa.text("SELECT GET_LOCK(CONCAT(DATABASE(), :name), :seconds)")


def take(connection: sa.Connection, seconds: float = 0, name: str = f".{KEY}") -> object:
    return connection.execute(TAKE, {"name": name, "seconds": seconds}).scalar()


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


def test_it_is_to_be_released_as_often_as_it_was_taken(
    engine: sa.Engine, held_there: Callable[[], bool]
) -> None:
    assert not held_there()
    release = f"SELECT RELEASE_LOCK(CONCAT(DATABASE(), '.{KEY}'))"
    with engine.connect() as connection:
        assert [take(connection), take(connection)] == [1, 1]
        released = [connection.exec_driver_sql(release).scalar() for _ in range(3)]
    assert released == [1, 1, None]


def test_no_limit_is_for_ever_or_an_error(database: Database, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert take(connection, -1, "for.ever") == (1 if database.name == "mysql" else None)
    engine.dispose()


def test_a_long_name_is_an_error(database: Database, engine: sa.Engine) -> None:
    room = {"mysql": 64, "mariadb": 192}[database.name]
    with engine.connect() as connection:
        room -= len(str(connection.exec_driver_sql("SELECT DATABASE()").scalar()))
        assert take(connection, name="x" * room) == 1
        with pytest.raises(DBAPIError):
            take(connection, name="x" * (room + 1))
    engine.dispose()


def test_names_that_differ_in_capitals_are_one_on_mysql(
    database: Database, engine: sa.Engine
) -> None:
    with engine.connect() as one, engine.connect() as other:
        assert take(one, name="user:ann") == 1
        assert take(other, name="user:Ann") == (0 if database.name == "mysql" else 1)
    engine.dispose()
