"""AUTOCOMMIT: a lock would end with its statement, so it is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order

pytestmark = pytest.mark.quick

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
LOCKS = [LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.SnapshotRead]
MakeEngine = Callable[..., sa.Engine]
Open = Callable[[MakeEngine], LockingSession]


def by_engine(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine(**AUTOCOMMIT))


def by_options_of_the_engine(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine(execution_options=AUTOCOMMIT))


def by_a_copy_of_the_engine(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine().execution_options(**AUTOCOMMIT))


def by_a_copy_of_an_engine_that_has_locked(make_engine: MakeEngine) -> LockingSession:
    engine = make_engine()
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    return LockingSession(engine.execution_options(**AUTOCOMMIT))


def by_connection(make_engine: MakeEngine) -> LockingSession:
    return LockingSession(make_engine().connect().execution_options(**AUTOCOMMIT))


def by_session(make_engine: MakeEngine) -> LockingSession:
    session = LockingSession(make_engine())
    session.connection(execution_options=AUTOCOMMIT)
    return session


def after_a_statement(make_engine: MakeEngine) -> LockingSession:
    session = by_engine(make_engine)
    session.get_one(Customer, 1)
    return session


def in_a_callers_transaction(make_engine: MakeEngine) -> LockingSession:
    session = by_engine(make_engine)
    session.begin()
    return session


WAYS: list[Open] = [
    by_engine,
    by_options_of_the_engine,
    by_a_copy_of_the_engine,
    by_a_copy_of_an_engine_that_has_locked,
    by_connection,
    by_session,
    after_a_statement,
    in_a_callers_transaction,
]


def test_a_lock_is_refused(make_engine: MakeEngine) -> None:
    for open_session, lock in product(WAYS, LOCKS):
        with open_session(make_engine) as session:
            with pytest.raises(LockNotSupported, match=r"Order 1 .* is in AUTOCOMMIT"):
                session.get_entity(Order, 1, lock)
            with pytest.raises(LockNotSupported, match=r"Order rows .* is in AUTOCOMMIT"):
                session.scalars(session.entity_set(Order, lock)).all()
            assert not session.held_locks, open_session
            bind = session.get_bind()
        if isinstance(bind, sa.Connection):
            bind.close()


def test_a_plain_read_is_not(make_engine: MakeEngine) -> None:
    with by_engine(make_engine) as session:
        assert session.get_one_entity(Order, 1).total == 30
        assert session.scalars(session.entity_set(Order)).all()


def test_a_session_of_another_level_on_such_an_engine_locks(
    make_engine: MakeEngine, other: LockingSession, read_committed: dict[str, Any]
) -> None:
    level = read_committed or {"isolation_level": other.connection().default_isolation_level}
    other.rollback()
    engine = make_engine(**AUTOCOMMIT).execution_options(**level)
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
        assert finds_held()(other)
        session.save_changes()
    assert other.get_one(Order, 1).total == 31
