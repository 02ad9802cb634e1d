"""A lender's COMMIT that a failed lock makes impossible: what was written is rolled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Customer, Order

NOW = LockOptions.ForUpdate | LockOptions.NoWait
NAMES = sa.select(Customer.name).order_by(Customer.id)
pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.not_databases("sqlite"),  # no lock fails behind a write
]


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> sa.Engine:
    """Make an engine with one connection, which everybody uses."""
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


def test_when_the_connection_is_given_back(engine: sa.Engine, holder: LockingSession) -> None:
    with engine.connect() as lent:
        session = write_and_be_refused(lent, holder)
        assert not session.held_locks
    with engine.begin() as connection:  # the same one
        connection.execute(sa.update(Order).values(remark="seen"))
    with engine.connect() as connection:
        assert list(connection.scalars(NAMES)) == ["Ann", "Ben"]


def test_when_the_lender_goes_on_with_it(engine: sa.Engine, holder: LockingSession) -> None:
    with engine.connect() as lent:
        session = write_and_be_refused(lent, holder)
        session.close()
        lent.rollback()
        lent.execute(sa.update(Order).values(remark="seen"))
        lent.commit()
        assert list(lent.scalars(NAMES)) == ["Ann", "Ben"]
