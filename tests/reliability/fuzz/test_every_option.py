"""All 64 sets of options, on every database: those that mean something lock, the others do not."""

from __future__ import annotations

from typing import Any

import pytest

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.reliability.fuzz.asking import EVERY, VALID, Sessions, Wish, answer
from tests.reliability.fuzz.entities import CLASSES, exists_on

SKIP, NO_WAIT = LockOptions.SkipLocked, LockOptions.NoWait
#: What a database has no word for.
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
