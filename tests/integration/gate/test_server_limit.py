"""Without a lock_timeout the gate waits as long as the server's configuration allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import DocumentGate, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import strategy_for
from tests.integration.locking.steps import locks
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order

Player = Actor[LockingSession]

#: How to configure each server on a connection, and the setting's value in seconds.
SETTINGS: Mapping[str, tuple[str, float]] = {
    "postgresql": ("SET lock_timeout = 250", 0.25),
    "mysql": ("SET SESSION innodb_lock_wait_timeout = 1", 1),
    "mariadb": ("SET SESSION innodb_lock_wait_timeout = 1", 1),
    "mssql": ("SET LOCK_TIMEOUT 250", 0.25),
    "sqlite": ("PRAGMA busy_timeout = 250", 0.25),
}


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine], database: Database) -> sa.Engine:
    """Make an engine whose connections wait for a short time."""
    statement, _ = SETTINGS[database.name]
    engine = make_engine()

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()

    return engine


def test_it_is_known_what_that_is(engine: sa.Engine, database: Database) -> None:
    with engine.connect() as connection:
        assert strategy_for(engine).waits.longest(connection) == SETTINGS[database.name][1]


def test_who_waits_at_the_gate_gets_an_error_after_that(
    gate: DocumentGate, alice: Player, bob: Player
) -> None:
    alice.does(locks(Order, 1))
    with pytest.raises(LockNotAvailable, match="within the server's own limit") as caught:
        bob.does(locks(Order, 1))
    assert caught.value.orig is None
    assert caught.value.waited > 0
    assert gate.waiting == 0


@pytest.mark.databases("postgresql")
def test_a_server_may_let_one_wait_for_ever(make_engine: Callable[..., sa.Engine]) -> None:
    engine = make_engine()
    with engine.connect() as connection:
        assert strategy_for(engine).waits.longest(connection) is None


@pytest.mark.databases("sqlite")
def test_or_not_at_all(
    make_engine: Callable[..., sa.Engine], gate: DocumentGate, alice: Player
) -> None:
    alice.does(locks(Order, 1))
    hasty = make_engine(connect_args={"timeout": 0})
    with LockingSession(hasty, gate=gate) as session:
        with pytest.raises(LockNotAvailable) as caught:
            session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert caught.value.orig is not None  # the database was asked
