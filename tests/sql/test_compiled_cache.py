"""A lock_timeout that differs from call to call adds one statement to the engine's cache, and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockNotSupported, LockOptions, claim_each
from tests.sql.models import Delivery, Lease, Order
from tests.sql.servers import DATABASES, serving
from tests.support.rows import rows

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Step = Callable[[LockingSession, float], object]

WHOLE = range(5, 30)
WITH_FRACTION = [second + 0.123 for second in WHOLE]


def claim(session: LockingSession, seconds: float) -> None:
    factory = sessionmaker(session.get_bind(), class_=LockingSession)
    for one in claim_each(factory, select(Order), limit=1, lock_timeout=seconds):
        with one:
            pass


WAYS: dict[str, Step] = {
    "by key": lambda session, seconds: session.get_entity(
        Order, 1, ForUpdate, lock_timeout=seconds
    ),
    "shared": lambda session, seconds: session.get_entity(
        Order, 1, SharedRead, lock_timeout=seconds
    ),
    "by keys": lambda session, seconds: session.get_entities(
        Order, [1, 2], ForUpdate, lock_timeout=seconds
    ),
    "of two tables": lambda session, seconds: session.get_entity(
        Lease, 1, ForUpdate, lock_timeout=seconds
    ),
    "document": lambda session, seconds: session.get_document(
        Delivery, 1, ForUpdate, lock_timeout=seconds
    ),
    "set": lambda session, seconds: session.scalars(
        session.entity_set(Order, ForUpdate, lock_timeout=seconds)
    ).all(),
    "set with a hint": lambda session, seconds: session.scalars(
        session.entity_set(Order, ForUpdate, lock_timeout=seconds).prefix_with(
            "/*+ NO_ICP(o) */", dialect="mysql"
        )
    ).all(),
    "name": lambda session, seconds: session.lock_key("user:42", lock_timeout=seconds),
    "shared name": lambda session, seconds: session.lock_key(
        "user:42", lock_timeout=seconds, shared=True
    ),
    "claim": claim,
}


@pytest.mark.slow
@rows("way", WAYS)
@rows("name", DATABASES)
def test_no_limit_has_a_statement_of_its_own(name: str, way: str) -> None:
    cache: dict[object, object] = {}
    with serving(name) as (engine, _):
        engine.update_execution_options(compiled_cache=cache)
        for first, *others in (WITH_FRACTION, WHOLE):
            take(engine, way, first)
            size = len(cache)
            for seconds in others:
                take(engine, way, seconds)
            assert len(cache) == size


def take(engine: Engine, way: str, seconds: float) -> None:
    with LockingSession(engine) as session:
        try:
            WAYS[way](session, seconds)
        except LockNotSupported as error:  # SharedRead on MySQL before SQLAlchemy 2.0.45
            pytest.skip(str(error))
