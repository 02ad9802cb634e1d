"""Failing commits and flushes, and the end of a lent Connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, ReleasedLock
from tests.support.databases import PIPELINED
from tests.support.models import Customer, Line, Order
from tests.support.rows import rows

pytestmark = pytest.mark.quick


# --------------------------------------------------------------------------------------------------
# A COMMIT that was never sent commits nothing, and no one else commits the work.

ForUpdate = LockOptions.ForUpdate

# With pipeline=True the COMMIT travels with the last flush, before its listeners are called.


@pytest.fixture
def engine_not_sent(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    """Make an engine with one connection, shared by all."""
    return make_engine(pool_size=1, max_overflow=0, pool_timeout=1)


def interrupted(engine: sa.Engine, session: LockingSession) -> None:
    """Change order 1, and interrupt its commit; the session stays open."""

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


@pytest.mark.not_databases(PIPELINED)
@pytest.mark.parametrize(
    "end", [LockingSession.close, LockingSession.rollback, LockingSession.reset]
)
@pytest.mark.parametrize("interrupt", [interrupted, within_a_block])
def test_the_next_commit_on_its_connection_is_not_for_it(
    engine_not_sent: sa.Engine,
    interrupt: Callable[[sa.Engine, LockingSession], None],
    end: Callable[[LockingSession], None],
) -> None:
    session = LockingSession(engine_not_sent)
    interrupt(engine_not_sent, session)
    end(session)
    commit_something(engine_not_sent)
    with LockingSession(engine_not_sent) as reader:
        assert reader.get_one(Order, 1).total == 30
        assert reader.get_one(Order, 2).total == 6


@pytest.mark.not_databases(PIPELINED)
def test_its_lock_is_given_up(
    engine_not_sent: sa.Engine, make_session: Callable[..., LockingSession]
) -> None:
    session = LockingSession(engine_not_sent)
    interrupted(engine_not_sent, session)
    session.close()
    other = make_session()
    assert other.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait).total == 30


@pytest.mark.not_databases(PIPELINED)
def test_the_session_goes_on_after_it(engine_not_sent: sa.Engine) -> None:
    with LockingSession(engine_not_sent) as session:
        interrupted(engine_not_sent, session)
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate).total = 32
        session.save_changes()
        assert session.get_one(Order, 1).total == 32


@pytest.mark.not_databases(PIPELINED)
def test_a_listener_that_fails_behind_the_commit_undoes_nothing(engine_not_sent: sa.Engine) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    session = LockingSession(engine_not_sent)
    event.listen(session, "after_commit", fail)
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    with contextlib.suppress(ZeroDivisionError):
        session.save_changes()
    session.close()
    with LockingSession(engine_not_sent) as reader:
        assert reader.get_one(Order, 1).total == 31


# --------------------------------------------------------------------------------------------------
# A failed lock blocks the COMMIT of a lent connection: the written rows are rolled back.

NOW = LockOptions.ForUpdate | LockOptions.NoWait
NAMES = sa.select(Customer.name).order_by(Customer.id)


@pytest.fixture
def engine_refused(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]
) -> sa.Engine:
    """Make an engine with one connection, shared by all."""
    return make_engine(**read_committed, pool_size=1, max_overflow=0, pool_timeout=1)


def write_and_be_refused(lent: sa.Connection, holder: LockingSession) -> LockingSession:
    """Write on a lent connection, fail to lock there, and try to commit it."""
    holder.get_one_entity(Order, 1, LockOptions.ForUpdate)
    lent.execute(sa.update(Customer).values(name="lent"))
    session = LockingSession(lent)
    session.scalar(sa.select(1))
    with pytest.raises(LockNotAvailable):
        session.get_one_entity(Order, 1, NOW)
    with pytest.raises(PendingRollbackError):
        lent.commit()
    holder.rollback()
    return session


@pytest.fixture
def holder(make_session: Callable[..., LockingSession]) -> LockingSession:
    return make_session()


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_when_the_connection_is_given_back(
    engine_refused: sa.Engine, holder: LockingSession
) -> None:
    with engine_refused.connect() as lent:
        session = write_and_be_refused(lent, holder)
        assert not session.held_locks
    with engine_refused.begin() as connection:  # the same connection
        connection.execute(sa.update(Order).values(remark="seen"))
    with engine_refused.connect() as connection:
        assert list(connection.scalars(NAMES)) == ["Ann", "Ben"]


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_when_the_lender_goes_on_with_it(engine_refused: sa.Engine, holder: LockingSession) -> None:
    with engine_refused.connect() as lent:
        session = write_and_be_refused(lent, holder)
        session.close()
        lent.rollback()
        lent.execute(sa.update(Order).values(remark="seen"))
        lent.commit()
        assert list(lent.scalars(NAMES)) == ["Ann", "Ben"]


# --------------------------------------------------------------------------------------------------
# An error in close() or reset() of a session on a lent Connection: the transaction stays open.


class MistakeError(Exception):
    pass


# close() ends the transaction of a Connection lent with "control_fully", even without an error.
MODES = "conditional_savepoint", "rollback_only", "create_savepoint"


@pytest.mark.databases("sqlite", "postgresql")
@rows("mode", MODES)
@rows("name", ["close", "reset"])
@rows("error", [MistakeError, KeyboardInterrupt])
def test_what_the_lender_has_written_stays(
    engine: sa.Engine, mode: Any, name: str, error: type[BaseException]
) -> None:
    def mistake(_: Any, transaction: Any) -> None:
        if transaction.nested:
            raise error

    with engine.connect() as connection, connection.begin() as lent:
        connection.execute(sa.update(Order).where(Order.id == 2).values(total=4711))
        session = LockingSession(connection, join_transaction_mode=mode)
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        session.begin_nested()
        event.listen(session, "after_transaction_end", mistake)
        with pytest.raises(error):
            getattr(session, name)()
        assert not session.in_transaction()
        assert lent.is_active
        assert connection.scalar(sa.select(Order.total).where(Order.id == 2)) == 4711
        lent.rollback()


# --------------------------------------------------------------------------------------------------
# A failed flush rolls back: no lock is held, and nothing reports one.

Session = LockingSession


def fail_to_flush(session: Session) -> None:
    session.add(Line(id=1, order_id=1, name="there is one", value=1))
    with pytest.raises(IntegrityError):
        session.flush()


def test_what_was_held_is_held_no_more(session: Session, other: Session) -> None:
    kept = session.get_one_entity(Order, 1, ForUpdate)
    fail_to_flush(session)
    assert kept in session
    assert not session.held_locks
    assert other.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)


def test_it_cannot_be_had_again_before_the_rollback(session: Session) -> None:
    kept = session.get_one_entity(Order, 1, ForUpdate)
    fail_to_flush(session)
    with pytest.raises(PendingRollbackError):
        session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(PendingRollbackError):
        session.get_entities(Order, [1, 2], ForUpdate)
    session.rollback()
    assert session.get_entity(Order, 1, ForUpdate) is kept
    assert session.held_locks == {(Order, (1,)): ForUpdate}


def test_the_release_is_reported_once(session: Session) -> None:
    reported: list[tuple[list[ReleasedLock], str]] = []
    event.listen(
        session, "locks_released", lambda _, released, outcome: reported.append((released, outcome))
    )
    session.get_one_entity(Order, 1, ForUpdate)
    fail_to_flush(session)
    session.rollback()
    ((released, outcome),) = reported
    assert [one.document for one in released] == [(Order, (1,))]
    assert outcome in {"rolled back", "lost"}  # PostgreSQL did so before SQLAlchemy


def test_in_a_savepoint_what_was_locked_before_it_is_still_held(session: Session) -> None:
    kept = [session.get_one_entity(Order, 1, ForUpdate)]
    savepoint = session.begin_nested()
    kept.append(session.get_one_entity(Order, 2, ForUpdate))
    fail_to_flush(session)
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    with pytest.raises(PendingRollbackError):
        session.get_entity(Order, 2, ForUpdate)
    savepoint.rollback()
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    kept[0].total = 31
    session.save_changes()
