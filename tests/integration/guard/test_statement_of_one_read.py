"""UnlockedWrite names rows that one statement object has read, each at its own time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.guard.models import Lease, Order
from tests.integration.guard.test_sentence_of_read import here, sentence_of_read

MakeSession = Callable[..., LockingSession]


@pytest.fixture
def make_session(make_session: MakeSession) -> MakeSession:
    """Return a maker of sessions that trace what they read."""
    return partial(make_session, guard_tracing=True)


@pytest.fixture
def session(make_session: MakeSession) -> LockingSession:
    """Make a session that traces what it reads."""
    return make_session()


by_key = sa.select(Order).where(Order.id == sa.bindparam("key"))


def test_it_learns_of_each_row_whether_a_lock_was_held_then(make_session: MakeSession) -> None:
    session = make_session(expire_on_commit=False)
    held = session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    under = session.scalars(by_key, {"key": 2}).one()
    session.commit()
    after = session.scalars(by_key, {"key": 1}).one()
    under.total += 1
    assert sentence_of_read(session).startswith("It was read by SELECT")
    session.expire(under)
    after.total += 1
    assert sentence_of_read(session).startswith("It was read without the lock by SELECT")
    assert held


def read_both(session: LockingSession) -> tuple[Order, Order]:
    first = session.scalars(by_key, {"key": 1}).one()
    second = session.scalars(by_key, {"key": 2}).one()
    return first, second


def test_with_guard_tracing_each_row_has_its_own_line(make_session: MakeSession) -> None:
    session = make_session(guard_tracing=True)
    first, second = read_both(session)
    second.total += 1
    assert sentence_of_read(session).endswith(here(read_both, 2))
    session.expire(second)
    first.total += 1
    assert sentence_of_read(session).endswith(here(read_both, 1))
