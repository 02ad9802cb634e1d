"""A connection lost after the end of its transaction does not harm its pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
# Statements restore the level here, and SQLAlchemy does not catch their errors.
pytestmark = pytest.mark.databases("mysql", "mariadb")


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    return make_engine(pool_size=1, max_overflow=0, pool_timeout=1)


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[LockingSession]:
    """Open a session with two-phase commit: only such a session restores a level."""
    with LockingSession(engine, twophase=True) as session:
        yield session


@pytest.fixture
def lose(documents: Database, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server end each connection when its level is to be restored."""
    reset = engine.dialect.reset_isolation_level

    def lost(connection: Any) -> None:
        with documents.observer().connect() as observer:
            observer.exec_driver_sql(f"KILL {connection.thread_id()}")
        reset(connection)

    monkeypatch.setattr(engine.dialect, "reset_isolation_level", lost)


def in_use(engine: sa.Engine) -> int:
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()


@pytest.mark.usefixtures("lose")
def test_what_was_committed_is_no_error(session: LockingSession, engine: sa.Engine) -> None:
    """SQLAlchemy alone raises the driver's error, and counts the connection as in use."""
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()
    assert in_use(engine) == 0
    assert session.get_one_entity(Order, 1, ForUpdate).total == 31  # on another connection


@pytest.mark.usefixtures("lose")
def test_nor_is_what_was_rolled_back(session: LockingSession, engine: sa.Engine) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.release_locks()
    assert in_use(engine) == 0
    assert session.get_one_entity(Order, 1, ForUpdate).total == 30


@pytest.mark.usefixtures("lose")
def test_nor_what_was_left(session: LockingSession, engine: sa.Engine) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.close()
    assert in_use(engine) == 0


def test_an_interrupt_meanwhile_comes_out_and_keeps_no_connection(
    session: LockingSession, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    session.get_one_entity(Order, 1, ForUpdate).total = 31
    with monkeypatch.context() as patched:
        patched.setattr(engine.dialect, "reset_isolation_level", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.save_changes()
    assert in_use(engine) == 0
    session.close()
    with LockingSession(engine) as other:
        assert other.get_one_entity(Order, 1, ForUpdate).total == 31
