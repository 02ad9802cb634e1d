"""A session that is never used has nothing for its locks, and one that was used has few bytes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.transaction import LockContext
from tests.support.models import Base, Order

#: More than a Session of SQLAlchemy has: one attribute with the options, which sessions share.
MOST_BYTES = 300
#: The same after a lock and its commit: the context, the calls, the parts and the guard.
MOST_BYTES_OF_USED = 900
MANY = 200


def has_context(session: LockingSession) -> bool:
    return any(isinstance(one, LockContext) for one in vars(session).values())


def bytes_of(make: Callable[[], Session]) -> float:
    sessions = [make()]  # the first one fills the caches
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        sessions += [make() for _ in range(MANY)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / MANY


def test_what_a_session_keeps_for_its_locks_begins_with_its_transaction() -> None:
    with LockingSession(sa.create_engine("sqlite://")) as session:
        session.close()
        assert not has_context(session)
        session.begin()
        assert has_context(session)


def test_a_session_that_is_never_used_is_as_small_as_one_of_sqlalchemy() -> None:
    engine = sa.create_engine("sqlite://")
    plain, ours = bytes_of(lambda: Session(engine)), bytes_of(lambda: LockingSession(engine))
    assert ours - plain <= MOST_BYTES, (plain, ours)


def test_a_session_that_has_locked_and_committed_keeps_little(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/used.db")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(id=1, total=0))
        session.commit()

    def plain() -> Session:
        session = Session(engine)
        session.get_one(Order, 1)
        session.commit()
        session.close()
        return session

    def locking() -> LockingSession:
        session = LockingSession(engine)
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        session.commit()
        session.close()
        return session

    before, ours = bytes_of(plain), bytes_of(locking)
    assert ours - before <= MOST_BYTES_OF_USED, (before, ours)


@pytest.mark.parametrize(
    "options", [{"guard": "warn"}, {"binds": {}}, {"lock_timeout": 1}], ids=str
)
def test_parts_that_are_asked_for_are_made_at_once(options: dict[str, Any]) -> None:
    with LockingSession(sa.create_engine("sqlite://"), **options) as session:
        assert has_context(session) is ("guard" in options)
