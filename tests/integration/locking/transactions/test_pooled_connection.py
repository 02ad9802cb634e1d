"""A connection returns to the pool unchanged, whatever the session did with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.connections import isolation_of, patience_of, set_patience
from tests.support.models import Contract, Lease, Order
from tests.support.poolers import SETS_CONNECTION

pytestmark = SETS_CONNECTION

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
Use = Callable[[LockingSession, LockingSession], object]


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    """Make an engine with one connection, whose limits differ from every default."""
    engine = make_engine(pool_size=1, max_overflow=0)
    set_patience(engine, 47)
    return engine


@pytest.fixture
def holder(make_session: Callable[..., LockingSession]) -> LockingSession:
    """Open a session on a separate engine."""
    return make_session()


def granted(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5).total = 31
    session.save_changes()


def rolled_back(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
    session.rollback()


def closed(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate | NoWait)
    session.close()


def read(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, SharedRead, lock_timeout=5.5)
    session.release_locks()


def read_a_snapshot(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
    session.release_locks()


def committed_a_snapshot(session: LockingSession, _: LockingSession) -> None:
    session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
    session.save_changes()


def refused(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    session.get_entity(Order, 1, ForUpdate | NoWait)


def timed_out(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    session.get_entity(Order, 1, ForUpdate, lock_timeout=0.2)


def timed_out_in_two_tables(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Contract, 1, ForUpdate)
    session.get_entity(Lease, 1, ForUpdate, lock_timeout=0.2)


def timed_out_in_a_callers_transaction(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    with session.begin():
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.2)


def refused_a_set(session: LockingSession, holder: LockingSession) -> None:
    holder.get_one_entity(Order, 1, ForUpdate)
    session.execute(session.entity_set(Order, ForUpdate | NoWait))


USES: tuple[Use, ...] = (
    granted,
    rolled_back,
    closed,
    read,
    read_a_snapshot,
    committed_a_snapshot,
    refused,
    timed_out,
    timed_out_in_two_tables,
    timed_out_in_a_callers_transaction,
    refused_a_set,
)


def test_nothing_is_left_on_it(
    engine: sa.Engine, session: LockingSession, holder: LockingSession
) -> None:
    with engine.connect() as connection:
        before = connection.connection.driver_connection
        settings = patience_of(connection), isolation_of(connection)
    for use in USES:
        with suppress(LockNotAvailable):
            use(session, holder)
        holder.rollback()
        with engine.connect() as connection:
            assert (patience_of(connection), isolation_of(connection)) == settings, use
            assert connection.connection.driver_connection is before, use


def test_the_limit_is_for_the_lock_alone(engine: sa.Engine, session: LockingSession) -> None:
    with engine.connect() as connection:
        patience = patience_of(connection)
    for entity, lock in product((Order, Lease), (ForUpdate, SharedRead)):
        session.get_one_entity(entity, 1, lock, lock_timeout=5.5)
        assert patience_of(session.connection()) == patience, (entity, lock)
        session.rollback()


def test_a_savepoint_puts_the_limit_back_after_a_failure(
    make_session: Callable[..., LockingSession],
    read_committed: dict[str, Any],
    holder: LockingSession,
) -> None:
    session = make_session(**read_committed)
    with session.begin():
        patience = patience_of(session.connection())
        holder.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0.2)
        assert patience_of(session.connection()) == patience
