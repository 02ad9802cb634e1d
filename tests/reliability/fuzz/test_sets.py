"""Selects of every kind: the lock is in what is sent to the database, or an error of ours comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from sa_doclock import DocLockError, LockingSession, LockOptions, with_lock
from tests.reliability.fuzz.asking import Sessions, Wish, answer, is_ours
from tests.reliability.fuzz.choices import (
    batches,
    later,
    locks,
    shapes,
    some,
    states,
    the_same_always,
    waits,
)
from tests.reliability.fuzz.entities import ENTITIES, exists_on
from tests.reliability.fuzz.statements import CHANGES, USUAL

#: What reads no row of the header any more, so that there is nothing to lock.
OTHER_STATEMENTS = {"text", "a count alone"}

#: Options that say nothing about a statement without an entity.
LOADERS = {"joinedload", "subqueryload"}

#: What makes rows that are no rows of the header, or reads details by the statement that locks.
UNLOCKABLE = {
    *("distinct", "group_by", "having", "union", "from_statement", "text"),
    *LOADERS,
}
#: What a statement without a lock of ours may say all the same.
OWN_LOCKS = {"with_for_update", "hint", "hint everywhere", "hint of another table"}

before_it = st.lists(some(CHANGES, USUAL), max_size=3, unique=True)
after_it = st.lists(some(CHANGES.keys() - OTHER_STATEMENTS, USUAL), max_size=2, unique=True)
runs = st.sampled_from(("execute", "scalars", "scalar", "yield_per"))


def _changed(statement: Any, entity: Any, names: Sequence[str]) -> Any:
    for name in names:
        statement = CHANGES[name](statement, entity)
    return statement


def _run(session: LockingSession, statement: Any, run: str) -> Any:
    if run == "yield_per":
        return session.execute(statement, execution_options={"yield_per": 5}).all()
    if run == "scalar":
        return session.scalar(statement)
    if run == "scalars":
        return session.scalars(statement).unique().all()
    return session.execute(statement).all()


def _cannot_be(build: Callable[[LockOptions | None], Any]) -> bool:
    """Return whether SQLAlchemy itself knows no such statement."""
    try:
        build(None)
    except (SQLAlchemyError, DocLockError, AttributeError, NotImplementedError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.soak
@the_same_always(examples=200)
@given(
    entity=shapes,
    before=before_it,
    after=st.one_of(st.just([]), after_it),
    named=st.booleans(),
    lock=locks,
    run=runs,
    batch=batches,
    session_seconds=waits,
    state=states,
    then=later,
)
def test_the_lock_is_sent_or_an_error_of_ours_comes_out(
    served: Sessions,
    entity: str,
    before: list[str],
    after: list[str],
    named: bool,
    lock: LockOptions,
    run: str,
    batch: bool,
    session_seconds: float | None,
    state: str,
    then: str,
) -> None:
    assume(exists_on(served[0], entity))
    shape = ENTITIES[entity]

    def locked_statement(_: LockOptions | None) -> Any:
        return _changed(select(shape.entity), shape.entity, before)

    def build(lock: LockOptions | None) -> Any:
        statement = locked_statement(None)
        if lock is not None:
            statement = with_lock(statement, lock, shape.entity if named else None)
        return _changed(statement, shape.entity, after)

    assume(not _cannot_be(build))
    wish = Wish(shape, lock, None, session_seconds, batch, state, then=then)
    found = answer(served, wish, lambda session: _run(session, build(lock), run))
    if found is None:
        return
    note(f"received {found.received}, raised {found.error!r}")
    assert (
        is_ours(found.error)
        or found.error is None
        or _fails_without_lock(served, wish, build, run)
        or _fails_without_lock(served, wish, locked_statement, run)
    )
    plain = lock in (LockOptions.None_, LockOptions.NoLock)
    unlockable = UNLOCKABLE - (LOADERS if "a key alone" in (*before, *after) else set())
    if not plain and not unlockable.isdisjoint({*before, *after}):
        assert found.error is not None
    assert found.lacks is None or (plain and not OWN_LOCKS.isdisjoint({*before, *after}))


def _fails_without_lock(
    served: Sessions, wish: Wish, build: Callable[[LockOptions | None], Any], run: str
) -> bool:
    """Return whether the statement itself is wrong: the session cannot run it without a lock."""
    plain = wish._replace(lock=LockOptions.None_)
    found = answer(served, plain, lambda session: _run(session, build(None), run))
    return found is not None and found.error is not None
