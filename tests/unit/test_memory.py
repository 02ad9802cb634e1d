"""Nothing of a transaction outlives it, and of a row only its key."""

from __future__ import annotations

import functools
import gc
import pkgutil
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert
from sqlalchemy.event import registry
from sqlalchemy.orm import SessionTransaction

import sa_doclock
from sa_doclock import LockingSession, LockNotAvailable, LockOptions, UnsavedChanges
from sa_doclock.core.session import context_of
from sa_doclock.dialects.registry import strategies
from tests.support.models import Line, Order

CACHE = type(functools.lru_cache(len))
FOR_UPDATE = LockOptions.ForUpdate
#: Cached by LockOptions, with 64 possible values, or without arguments.
BOUNDED_BY_NATURE = {
    "may_queue",
    "base_of",
    "held_lock",
    "is_row_lock",
    "without_no_key",
    "_check_members",
    "strategy_classes",
    "suffixed",
    "table_hints",
}


def _caches() -> Iterator[tuple[str, Any]]:
    for found in pkgutil.walk_packages(sa_doclock.__path__, "sa_doclock."):
        if found.name.startswith(("sa_doclock.tools.cli", "sa_doclock.alembic")):
            continue  # not part of a running program
        for name, value in vars(import_module(found.name)).items():
            if isinstance(value, CACHE):
                yield name, value


def _alive() -> Counter[str]:
    """Count the library's own objects, the objects that it could keep alive, and listeners."""
    gc.collect()
    gc.collect()  # the dialect of a freed engine, whose plans refer to it
    kinds = [type(thing) for thing in gc.get_objects()]
    ours = (kind.__name__ for kind in kinds if str(kind.__module__).startswith("sa_doclock."))
    theirs = (kind.__name__ for kind in kinds if kind in (SessionTransaction, Connection, Line))
    return Counter([*ours, *theirs, *("listener" for _ in registry._key_to_collection)])


def _commit(session: LockingSession) -> None:
    with session.locked(Order, 1) as order:
        order.total += 1


def _roll_back(session: LockingSession) -> None:
    session.get_entity(Order, 1, LockOptions.SharedRead, lock_timeout=1)
    session.release_locks()


def _use_savepoints(session: LockingSession) -> None:
    session.get_entity(Order, 1, FOR_UPDATE)
    with session.begin_nested():
        session.get_entity(Order, 2, FOR_UPDATE)
    session.begin_nested().rollback()
    session.rollback()


def _lock_a_set(session: LockingSession) -> None:
    session.scalars(session.entity_set(Order, FOR_UPDATE).limit(5)).all()
    session.close()


def _fail(session: LockingSession) -> None:
    session.get_one(Order, 1).total += 1
    with pytest.raises(UnsavedChanges):
        session.get_entity(Order, 1, FOR_UPDATE)
    session.rollback()


WAYS: list[Callable[[LockingSession], None]] = [
    _commit,
    _roll_back,
    _use_savepoints,
    _lock_a_set,
    _fail,
]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_nothing_is_kept_of_a_transaction_that_is_over(engine: Engine, way: Any) -> None:
    def work() -> None:
        with LockingSession(engine) as session:
            way(session)

    work()  # may configure the mappers and so empty the caches
    work()
    before = _alive()
    for _ in range(5):
        work()
    assert _alive() == before


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_nothing_is_kept_in_a_session_that_goes_on(session: LockingSession, way: Any) -> None:
    way(session)  # may configure the mappers and so empty the caches
    way(session)
    before = _alive()
    for _ in range(5):
        way(session)
    assert not session.held_locks
    assert _alive() == before


@pytest.mark.slow
def test_a_connection_is_forgotten_when_it_is_closed(engine: Engine) -> None:
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, FOR_UPDATE)
        connection = weakref.ref(session.connection())
    gc.collect()
    assert connection() is None


def test_what_a_session_keeps_for_its_locks_is_freed_with_it(engine: Engine) -> None:
    gc.collect()
    gc.disable()
    try:
        session = LockingSession(engine)
        session.get_one_entity(Order, 1, FOR_UPDATE).total += 1
        session.commit()
        freed = weakref.ref(context_of(session))
        session.close()
        del session
        assert freed() is None
    finally:
        gc.enable()


def test_a_connection_that_was_lent_is_left_without_a_listener(engine: Engine) -> None:
    with engine.connect() as connection:
        before = list(connection.dispatch.before_cursor_execute)  # the kit's, for all engines
        session = LockingSession(connection)
        session.get(Order, 2)
        with pytest.raises(LockNotAvailable):
            _fail_to_lock(engine, session)
        session.close()
        assert list(connection.dispatch.before_cursor_execute) == before
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_connection_that_was_lent_does_not_keep_the_session(engine: Engine) -> None:
    with engine.connect() as connection:
        session = LockingSession(connection)
        session.get_entity(Order, 1, FOR_UPDATE)
        session.close()
        gone = weakref.ref(session)
        del session
        gc.collect()
        assert gone() is None


def _fail_to_lock(engine: Engine, session: LockingSession) -> None:
    with LockingSession(engine) as other:
        other.get_entity(Order, 1, FOR_UPDATE)
        session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=0)


def test_a_session_is_garbage_when_it_is_closed(engine: Engine) -> None:
    session = LockingSession(engine)
    session.get_entity(Order, 1, FOR_UPDATE)
    session.close()
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def test_an_object_that_is_locked_is_not_kept_alive(session: LockingSession) -> None:
    session.execute(insert(Order), [{"id": i, "total": 0} for i in range(10, 60)])
    session.commit()
    everything = session.scalars(session.entity_set(Order, FOR_UPDATE)).all()
    orders = [weakref.ref(order) for order in everything]
    lines = [weakref.ref(line) for order in everything for line in order.lines]
    del everything
    gc.collect()
    assert lines
    assert {reference() for reference in orders + lines} == {None}
    assert len(session.held_locks) == 52


def test_the_books_hold_keys_and_nothing_of_rows_without_a_lock(session: LockingSession) -> None:
    session.scalars(session.entity_set(Order)).all()
    session.get_entity(Line, 1)
    assert not session.held_locks
    session.get_entity(Order, 1, FOR_UPDATE)
    assert session.held_locks == {(Order, (1,)): FOR_UPDATE}


def test_an_engine_is_forgotten_when_nobody_has_it(engine: Engine) -> None:
    gc.collect()
    before = len(strategies)
    other = create_engine(engine.url)
    with LockingSession(other) as session:
        session.get_entity(Order, 1, FOR_UPDATE)
    assert len(strategies) == before + 1
    other.dispose()
    del other, session
    gc.collect()
    assert len(strategies) == before


def test_every_cache_is_bounded() -> None:
    caches = dict(_caches())
    assert "select_by_key" in caches
    for name, cache in caches.items():
        assert cache.cache_parameters()["maxsize"] or name in BOUNDED_BY_NATURE, name
