"""A session that is never used has nothing for its locks: no objects, and few bytes."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import LockingSession
from sa_doclock.core.transaction import LockContext

#: More than a Session of SQLAlchemy has: one attribute with the options, which sessions share.
MOST_BYTES = 300
MANY = 200


def has_context(session: LockingSession) -> bool:
    return any(isinstance(one, LockContext) for one in vars(session).values())


def bytes_of(kind: type[Session], engine: sa.Engine) -> float:
    sessions = [kind(engine)]  # the first one fills the caches
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        sessions += [kind(engine) for _ in range(MANY)]
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
    plain, ours = bytes_of(Session, engine), bytes_of(LockingSession, engine)
    assert ours - plain <= MOST_BYTES, (plain, ours)


@pytest.mark.parametrize(
    "options", [{"guard": "warn"}, {"binds": {}}, {"lock_timeout": 1}], ids=str
)
def test_parts_that_are_asked_for_are_made_at_once(options: dict[str, Any]) -> None:
    with LockingSession(sa.create_engine("sqlite://"), **options) as session:
        assert has_context(session) is ("guard" in options)
