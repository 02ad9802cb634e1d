"""A listener that raises, or Ctrl-C, stops SQLAlchemy between the end of a transaction and its event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import is_free
from tests.support.ctrl_c import CtrlC
from tests.support.models import Order

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait

# SQLAlchemy's pool logs the interruption of a reset, and raises it.
pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")]


@pytest.fixture
def pooled(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    return make_engine(poolclass=QueuePool)


@contextmanager
def ctrl_c(engine: sa.Engine, name: str) -> Iterator[None]:
    """Raise KeyboardInterrupt at the next event of this name."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    event.listen(engine, name, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        event.remove(engine, name, interrupt)


def checked_out(engine: sa.Engine) -> int:
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


def test_close_gives_the_connection_and_the_lock_back(
    pooled: sa.Engine, other: LockingSession
) -> None:
    with LockingSession(pooled) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        with ctrl_c(pooled, "rollback"):
            session.close()
        assert checked_out(pooled) == 0
        assert is_free(other, Order, 1)


def test_close_after_a_failed_lock_closes_in_spite_of_an_interrupted_rollback(
    pooled: sa.Engine, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with LockingSession(pooled) as session:
        session.begin()
        session.add(Order(id=77, total=0))
        with pytest.raises(LockNotAvailable):
            session.get_one_entity(Order, 1, ForUpdate | NoWait)
        with ctrl_c(pooled, "reset"):
            session.close()
        assert not session.new
        other.rollback()
        session.get_one_entity(Order, 1, ForUpdate)


@pytest.mark.parametrize("use", ["close", "rollback", "held_locks", "on_commit", "get_entity"])
def test_the_functions_of_a_commit_are_called_in_spite_of_it(
    pooled: sa.Engine, other: LockingSession, use: str
) -> None:
    called: list[str] = []
    with LockingSession(pooled) as session:
        session.get_one_entity(Order, 1, ForUpdate).total += 1
        session.on_commit(lambda: called.append("committed"))
        with ctrl_c(pooled, "reset"):
            session.commit()
        if use == "on_commit":
            session.on_commit(lambda: called.append("rolled back"))
        elif use == "held_locks":
            assert not session.held_locks
        elif use == "get_entity":
            session.get_one_entity(Order, 2, ForUpdate)
        else:
            getattr(session, use)()
        assert called == ["committed"]
        session.on_commit(lambda: called.append("rolled back"))
        session.get_one_entity(Order, 2, ForUpdate)
        assert not is_free(other, Order, 2)
        session.rollback()
    assert called == ["committed"]


def test_what_follows_an_interrupted_begin_nested_is_that_of_begin(pooled: sa.Engine) -> None:
    with LockingSession(pooled) as session:
        session.begin_nested()
        session.get_one_entity(Order, 1, ForUpdate)
        with ctrl_c(pooled, "reset"):
            session.close()
        with session.begin():
            session.get_one_entity(Order, 1, ForUpdate)
            session.save_changes()
            assert session.held_locks == {(Order, (1,)): ForUpdate}


def test_also_of_a_transaction_whose_own_begin_was_interrupted(
    pooled: sa.Engine, other: LockingSession
) -> None:
    begin, interrupted = CtrlC("sa_doclock.core.session.hooks"), True
    while interrupted:
        with LockingSession(pooled) as session:
            interrupted = begin.during(lambda: session.add(Order(id=77, total=0)))
            session.expunge_all()
            session.get_one_entity(Order, 1, ForUpdate)
            kept = session.connection()  # else the garbage collector gives it back
            with ctrl_c(pooled, "rollback"):
                session.close()
            assert checked_out(pooled) == 0, begin.raised
            del kept
            assert is_free(other, Order, 1)


def test_also_of_a_savepoint_that_had_no_connection_yet(pooled: sa.Engine) -> None:
    """Else save_changes() would commit what the next begin() has opened."""
    close, interrupted = CtrlC("sa_doclock.core.session.hooks", "sa_doclock.core.transaction"), True
    while interrupted:
        with LockingSession(pooled) as session:
            session.begin_nested()
            interrupted = close.during(session.close)
            session.expunge_all()
            while session.in_transaction():
                session.close()
            with session.begin():
                session.get_one_entity(Order, 1, ForUpdate)
                session.save_changes()
                assert session.held_locks == {(Order, (1,)): ForUpdate}, close.raised
