"""Anything in place of arguments, writes, keys and selects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.exc import NoResultFound, SQLAlchemyError
from sqlalchemy.orm import joinedload, selectinload

from sa_doclock import (
    DocLockError,
    LockingSession,
    LockOptions,
    UnlockedWrite,
    WrongIsolation,
    with_lock,
)
from sa_doclock.options import GuardMode
from tests.reliability.fuzz.asking import (
    MODIFIERS,
    VALID,
    Sessions,
    Wish,
    answer,
    batches,
    is_ours,
    later,
    shapes,
    some,
    states,
    the_same_always,
    waits,
)
from tests.reliability.fuzz.asking import locks as locks_sets
from tests.reliability.fuzz.shapes import CHANGES, CLASSES, ENTITIES, JUNK, USUAL, exists_on
from tests.reliability.fuzz.test_by_key import WAYS
from tests.sql.models import Delivery, Line, Order

# --------------------------------------------------------------------------------------------------
# Any value as any argument: our error or Python's, before anything is sent.

junk = st.sampled_from(JUNK)
entities = st.one_of(st.just(Order), st.just(Order), junk)
idents = st.one_of(st.just(1), junk)
locks = st.one_of(st.just(LockOptions.ForUpdate), st.just(LockOptions.SharedRead), junk)
times = st.one_of(
    st.none(), st.none(), junk, st.floats(), st.timedeltas(), st.just(timedelta(seconds=1))
)
options = st.one_of(
    st.just(()),
    st.just(()),
    junk,
    st.lists(st.one_of(junk, st.just(selectinload(Order.lines)), st.just(joinedload(Line.order)))),
)


@pytest.mark.slow
@the_same_always(examples=250)
@given(
    way=st.sampled_from(sorted(WAYS)),
    entity=entities,
    ident=idents,
    lock=locks,
    seconds=times,
    loading=options,
)
def test_a_method_that_is_given_anything(
    served: Sessions,
    way: str,
    entity: Any,
    ident: Any,
    lock: Any,
    seconds: Any,
    loading: Any,
) -> None:
    def ask(session: LockingSession) -> Any:
        return WAYS[way](session, entity, ident, lock, lock_timeout=seconds, options=loading)

    found = answer(served, Wish(CLASSES["plain"], LockOptions.ForUpdate), ask, held=True)
    assert found is not None
    note(f"received {found.received}, raised {found.error!r}")
    error = found.error
    if type(error) in (ValueError, TypeError):
        assert found.received == []
    elif isinstance(error, SQLAlchemyError) and not isinstance(error, DocLockError):
        # a key that the driver cannot send, or that no row has
        assert isinstance(error, NoResultFound) or _is_refused_by_driver(served, ident)
    else:
        assert error is None or isinstance(error, DocLockError)


def _is_refused_by_driver(served: Sessions, ident: Any) -> bool:
    """Return whether Session.get() also raises an error."""
    wish = Wish(CLASSES["plain"], LockOptions.None_)
    found = answer(served, wish, lambda session: session.get(Order, ident), held=True)
    return found is not None and found.error is not None


@the_same_always(examples=100)
@given(statement=junk, entity=st.one_of(st.none(), junk), lock=locks)
def test_with_lock_that_is_given_anything(statement: Any, entity: Any, lock: Any) -> None:
    with pytest.raises((DocLockError, ValueError, TypeError)) as raised:
        with_lock(statement, lock, entity)
    assert is_ours(raised.value)


# --------------------------------------------------------------------------------------------------
# Writes to a declared document happen under its lock or not at all.

DOCUMENT = CLASSES["declared document"]
# On SQLite, an UPDATE of no row takes the write lock.
_WRITTEN = re.compile(r"^UPDATE shop_delivery SET total(?!.*(0 = 1|1 != 1|false))", re.DOTALL)


def _by_flush(session: LockingSession, found: Any) -> None:
    found.total += 1
    session.flush()


def _by_statement(session: LockingSession, found: Any) -> None:
    session.execute(update(Delivery).where(Delivery.id == found.id).values(total=5))


WRITES = {"flush": _by_flush, "statement": _by_statement}
GUARDS: tuple[GuardMode, ...] = ("raise", "raise", "off")


@pytest.mark.slow
@the_same_always(examples=100)
@given(
    lock=st.sampled_from([lock for lock in VALID if LockOptions.SkipLocked not in lock]),
    way=st.sampled_from(sorted(WRITES)),
    guard=st.sampled_from(GUARDS),
    batch=batches,
    state=states,
)
def test_it_is_written_under_its_lock_or_not_at_all(
    served: Sessions, lock: LockOptions, way: str, guard: GuardMode, batch: bool, state: str
) -> None:
    read: list[Any] = []

    def ask(session: LockingSession) -> None:
        read.append(session.get_entity(Delivery, 1, lock))
        WRITES[way](session, read[0])

    wish = Wish(DOCUMENT, lock, batch=batch, state=state, guard=guard)
    found = answer(served, wish, ask, held=True)
    if found is None:
        return
    note(f"received {found.received}, raised {found.error!r}")
    assert found.error is None or isinstance(found.error, DocLockError)
    written = any(_WRITTEN.search(sql) for sql in found.received)
    assert written is (found.error is None)
    locked = LockOptions.ForUpdate in (lock & ~MODIFIERS) or state == "held ForUpdate"
    if read and guard == "raise":  # the lock was granted, or none was requested
        assert isinstance(found.error, (UnlockedWrite, WrongIsolation)) is not locked
    if guard == "off":
        assert not isinstance(found.error, UnlockedWrite)


# --------------------------------------------------------------------------------------------------
# Named locks: for any key, the database takes it or the library raises its own error.

EXCLUSIVE, SHARED, AT_ONCE = "exclusive", "shared", "at once"
_GET_LOCK = {
    EXCLUSIVE: r"GET_LOCK\(%s, (?!0\))",
    SHARED: r"GET_LOCK\(%s, (?!0\))",
    AT_ONCE: r"GET_LOCK\(%s, 0\)",
}
_WRITE_LOCK = r"^BEGIN IMMEDIATE$|^PRAGMA user_version = |^UPDATE "
WORDS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        EXCLUSIVE: r"pg_advisory_xact_lock\(",
        SHARED: r"pg_advisory_xact_lock_shared\(",
        AT_ONCE: r"pg_try_advisory_xact_lock(_shared)?\(",
    },
    "mysql": _GET_LOCK,
    "mysql-5.7": _GET_LOCK,
    "mariadb": _GET_LOCK,
    "mssql": {
        EXCLUSIVE: r"sp_getapplock .*'Exclusive'",
        SHARED: r"sp_getapplock .*'Shared'",
        AT_ONCE: r"sp_getapplock .*@LockTimeout = 0\b",
    },
    "sqlite": dict.fromkeys((EXCLUSIVE, SHARED, AT_ONCE), _WRITE_LOCK),
}

keys = st.one_of(st.text(), st.text(min_size=60), st.sampled_from(JUNK))
shareds = st.one_of(st.booleans(), st.booleans(), st.sampled_from(JUNK))


def _is_wrong(key: object, shared: object) -> bool:
    if not isinstance(key, str) or not isinstance(shared, bool):
        return True
    return not key or "\0" in key or any("\ud800" <= one <= "\udfff" for one in key)


@pytest.mark.slow
@the_same_always(examples=120)
@given(key=keys, shared=shareds, seconds=waits, session_seconds=waits, batch=batches, state=states)
def test_a_key_is_taken_or_an_error_of_ours_comes_out(
    served: Sessions,
    key: Any,
    shared: Any,
    seconds: float | None,
    session_seconds: float | None,
    batch: bool,
    state: str,
) -> None:
    lock = LockOptions.SharedRead if shared is True else LockOptions.ForUpdate
    wish = Wish(CLASSES["plain"], lock, seconds, session_seconds, batch, state)
    found = answer(
        served,
        wish,
        lambda session: session.lock_key(key, shared=shared, lock_timeout=seconds),
        held=True,
    )
    if found is None:
        return
    note(f"received {found.received}, raised {found.error!r}")
    if _is_wrong(key, shared):
        assert type(found.error) in (ValueError, TypeError)
        assert found.received == []
        return
    assert found.error is None or isinstance(found.error, DocLockError)
    if found.error is None:
        manner = AT_ONCE if wish.no_wait else SHARED if shared else EXCLUSIVE
        words = WORDS[served[0]][manner]
        whole = [*found.earlier, *found.received] if served[0] == "sqlite" else found.received
        assert any(re.search(words, sql) for sql in whole)


# --------------------------------------------------------------------------------------------------
# Selects of every kind: the statement sent contains the lock, or the library raises its own error.

#: Statements that no longer read a row of the header, so that there is nothing to lock.
OTHER_STATEMENTS = {"text", "a count alone"}

#: Options without an effect on a statement without an entity.
LOADERS = {"joinedload", "subqueryload"}

#: Changes after which the result rows are not the header's, or the locking statement reads details.
UNLOCKABLE = {
    *("distinct", "group_by", "having", "union", "from_statement", "text"),
    *LOADERS,
}
#: Locks of its own that a statement may contain without a lock of ours.
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
    """Return whether SQLAlchemy itself rejects this statement."""
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
    lock=locks_sets,
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
    """Return whether the statement itself is wrong: the session cannot run it without a lock either."""
    plain = wish._replace(lock=LockOptions.None_)
    found = answer(served, plain, lambda session: _run(session, build(None), run))
    return found is not None and found.error is not None
