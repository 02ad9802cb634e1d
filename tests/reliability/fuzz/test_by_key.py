"""Documents requested by key: the session sends the lock to the database, or raises an error of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from sqlalchemy.exc import NoResultFound

from sa_doclock import (
    AsyncLockingSession,
    DocLockError,
    LockingSession,
    LockNotSupported,
    LockOptions,
)
from sa_doclock.options import GuardMode
from tests.reliability.fuzz.asking import (
    BASES,
    EVERY,
    QUEUEING,
    VALID,
    Sessions,
    Wish,
    answer,
    batches,
    guards,
    is_ours,
    later,
    locks,
    shapes,
    states,
    the_same_always,
    waits,
)
from tests.reliability.fuzz.shapes import (
    AFTERWARDS,
    CLASSES,
    ENTITIES,
    STATES,
    brought_by,
    exists_on,
)

NO_WAIT = LockOptions.NoWait


KEYS = ("right", "missing", "wrong shape", "None")


def _locked(session: LockingSession, entity: Any, ident: Any, lock: LockOptions, **how: Any) -> Any:
    """Return the result from inside the block, before its end commits."""
    context = session.locked(entity, ident, lock, **how)
    found = context.__enter__()
    return found, context


def _many(method: str) -> Callable[..., Any]:
    def ask(session: LockingSession, entity: Any, ident: Any, lock: LockOptions, **how: Any) -> Any:
        return getattr(session, method)(entity, [ident], lock, **how)

    return ask


def _awaited(method: str) -> Callable[..., Any]:
    """Ask an AsyncLockingSession that wraps this session."""

    def ask(session: LockingSession, entity: Any, ident: Any, lock: LockOptions, **how: Any) -> Any:
        one = AsyncLockingSession()
        one.sync_session = session
        asked = ident if method == "get_entity" else [ident]
        return asyncio.run(getattr(one, method)(entity, asked, lock, **how))

    return ask


WAYS: Mapping[str, Callable[..., Any]] = {
    "get_entity": LockingSession.get_entity,
    "get_one_entity": LockingSession.get_one_entity,
    "get_document": LockingSession.get_document,
    "get_entities": _many("get_entities"),
    "get_documents": _many("get_documents"),
    "locked": _locked,
    "async get_entity": _awaited("get_entity"),
    "async get_entities": _awaited("get_entities"),
    "async get_documents": _awaited("get_documents"),
}
SETS = ("get_entities", "get_documents", "async get_entities", "async get_documents")


@pytest.mark.slow
@pytest.mark.soak
@the_same_always(examples=300)
@given(
    way=st.sampled_from(sorted(WAYS)),
    entity=shapes,
    key=st.sampled_from((*KEYS, *["right"] * 6)),
    lock=locks,
    seconds=waits,
    session_seconds=waits,
    batch=batches,
    state=states,
    guard=guards,
    then=later,
)
def test_the_lock_is_sent_or_an_error_of_ours_comes_out(
    served: Sessions,
    way: str,
    entity: str,
    key: str,
    lock: LockOptions,
    seconds: float | None,
    session_seconds: float | None,
    batch: bool,
    state: str,
    guard: GuardMode,
    then: str,
) -> None:
    assume(exists_on(served[0], entity))
    shape = ENTITIES[entity]
    wish = Wish(shape, lock, seconds, session_seconds, batch, state, guard, then)
    ident = {"right": shape.key, "missing": shape.missing, "None": None}.get(key, (1, 2, 3))

    def ask(session: LockingSession) -> Any:
        return WAYS[way](session, shape.entity, ident, lock, lock_timeout=seconds)

    found = answer(served, wish, ask, held=key == "right" and brought_by(state, lock))
    if found is None:
        return
    note(f"received {found.received}, raised {found.error!r}")
    absent = key == "missing" and way in ("get_one_entity", "locked")
    assert (
        found.error is None
        or is_ours(found.error)
        or (absent and type(found.error) is NoResultFound)
    )
    if _is_wrong(way, wish, key):
        assert type(found.error) in (ValueError, TypeError)
        assert found.received == []
    else:
        assert found.error is None or isinstance(found.error, (DocLockError, NoResultFound))
        assert found.lacks is None


def _is_wrong(way: str, wish: Wish, key: str) -> bool:
    """Return whether the session must not ask the database."""
    return (
        wish.contradictory
        or (LockOptions.SkipLocked in wish.lock and way not in SETS)
        or (way == "locked" and wish.lock in BASES[:2])
        or key in ("wrong shape", "None")
        or wish.shape not in CLASSES.values()
    )


# --------------------------------------------------------------------------------------------------
# All 64 sets of options on every database: the meaningful ones lock, the others do not.

SKIP = LockOptions.SkipLocked
#: Options that the database cannot express.
NOT_THERE = {"sqlite": SKIP, "mysql-5.7": SKIP | NO_WAIT}


def _expected(database: str, lock: LockOptions) -> type[Exception] | None:
    if lock not in VALID:
        return ValueError
    return LockNotSupported if lock & NOT_THERE.get(database, LockOptions.None_) else None


@pytest.mark.parametrize("shape", CLASSES)
def test_a_document_is_locked_or_the_options_are_refused(served: Sessions, shape: str) -> None:
    if not exists_on(served[0], shape):
        pytest.skip("the file has no such schema")
    for lock in EVERY:
        wish = Wish(CLASSES[shape], lock)

        def ask(session: LockingSession, lock: LockOptions = lock) -> Any:
            return session.get_entities(CLASSES[shape].entity, [CLASSES[shape].key], lock)

        found = answer(served, wish, ask)
        assert found is not None
        wanted = _expected(served[0], lock)
        assert type(found.error) is (wanted or type(None)), lock
        assert found.lacks is None, (lock, found.received)
        assert (found.received == []) is (wanted is not None), lock


@pytest.mark.parametrize("shape", CLASSES)
def test_a_set_is_locked_or_the_options_are_refused(served: Sessions, shape: str) -> None:
    if not exists_on(served[0], shape):
        pytest.skip("the file has no such schema")
    for lock in EVERY:
        wish = Wish(CLASSES[shape], lock)

        def ask(session: LockingSession, lock: LockOptions = lock) -> Any:
            return session.scalars(session.entity_set(CLASSES[shape].entity, lock)).all()

        found = answer(served, wish, ask)
        assert found is not None
        assert type(found.error) is (_expected(served[0], lock) or type(None)), lock
        assert found.lacks is None, (lock, found.received)


# --------------------------------------------------------------------------------------------------
# Every way, in every state and every sequence of states: chance does not skip any.

PLAIN = CLASSES["plain"]


def _ask(served: Sessions, way: str, wish: Wish) -> bool:
    """Return whether the lock was sent; otherwise it was refused, or the state is impossible."""
    found = answer(
        served,
        wish,
        lambda session: WAYS[way](session, PLAIN.entity, PLAIN.key, wish.lock),
        held=brought_by(wish.state, wish.lock),
    )
    if found is None:
        return False
    assert found.error is None or isinstance(found.error, DocLockError), (way, wish)
    assert found.lacks is None, (way, wish, found.received)
    return found.error is None


@pytest.mark.parametrize("way", WAYS)
def test_every_way_locks_in_every_state_or_refuses(served: Sessions, way: str) -> None:
    received = [
        _ask(served, way, Wish(PLAIN, lock, state=state))
        for lock, state in product(QUEUEING, STATES)
    ]
    assert sum(received) > len(received) / 3


def test_every_state_may_follow_another(served: Sessions) -> None:
    received = [
        _ask(served, "get_entity", Wish(PLAIN, lock, state=state, then=then))
        for lock, state, then in product(QUEUEING, STATES, AFTERWARDS)
    ]
    assert sum(received) > len(received) / 3


def test_a_session_in_no_state_at_all_locks(served: Sessions) -> None:
    assert all(_ask(served, way, Wish(PLAIN, lock)) for way, lock in product(WAYS, QUEUEING))
