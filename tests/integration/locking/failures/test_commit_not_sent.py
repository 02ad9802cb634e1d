"""A COMMIT that was never sent has committed nothing, and nobody else commits it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import PIPELINED
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
# With pipeline=True the COMMIT was sent with the last flush when its listeners are called.
pytestmark = [pytest.mark.quick, pytest.mark.not_databases(PIPELINED)]


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    """Make an engine with one connection, which everybody uses."""
    return make_engine(pool_size=1, max_overflow=0, pool_timeout=1)


def interrupted(engine: sa.Engine, session: LockingSession) -> None:
    """Change order 1, and interrupt its commit; the session is still open."""

    def press_ctrl_c(_: object) -> None:
        raise KeyboardInterrupt

    event.listen(engine, "commit", press_ctrl_c)
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    with pytest.raises(KeyboardInterrupt):
        session.save_changes()
    event.remove(engine, "commit", press_ctrl_c)


def within_a_block(engine: sa.Engine, session: LockingSession) -> None:
    def press_ctrl_c(_: object) -> None:
        raise KeyboardInterrupt

    def change() -> None:
        with session.begin():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            session.commit()

    event.listen(engine, "commit", press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        change()
    event.remove(engine, "commit", press_ctrl_c)


def commit_something(engine: sa.Engine) -> None:
    with LockingSession(engine) as other:
        other.get_one_entity(Order, 2, ForUpdate).total = 6
        other.save_changes()


@pytest.mark.parametrize(
    "end", [LockingSession.close, LockingSession.rollback, LockingSession.reset]
)
@pytest.mark.parametrize("interrupt", [interrupted, within_a_block])
def test_the_next_commit_on_its_connection_is_not_for_it(
    engine: sa.Engine,
    interrupt: Callable[[sa.Engine, LockingSession], None],
    end: Callable[[LockingSession], None],
) -> None:
    session = LockingSession(engine)
    interrupt(engine, session)
    end(session)
    commit_something(engine)
    with LockingSession(engine) as reader:
        assert reader.get_one(Order, 1).total == 30
        assert reader.get_one(Order, 2).total == 6


def test_its_lock_is_given_up(
    engine: sa.Engine, make_session: Callable[..., LockingSession]
) -> None:
    session = LockingSession(engine)
    interrupted(engine, session)
    session.close()
    other = make_session()
    assert other.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait).total == 30


def test_the_session_goes_on_after_it(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        interrupted(engine, session)
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate).total = 32
        session.save_changes()
        assert session.get_one(Order, 1).total == 32


def test_a_listener_that_fails_behind_the_commit_undoes_nothing(engine: sa.Engine) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    session = LockingSession(engine)
    event.listen(session, "after_commit", fail)
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    with contextlib.suppress(ZeroDivisionError):
        session.save_changes()
    session.close()
    with LockingSession(engine) as reader:
        assert reader.get_one(Order, 1).total == 31
