"""lock_timeout counts in seconds, whatever unit the database uses; 0 means NoWait, None the server's limit."""

from __future__ import annotations

import gc
import math
import weakref
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, select
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import sessionmaker

from sa_doclock import AsyncLockingSession, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.core.documents import mapper_of
from sa_doclock.core.locking import ManyByKey, WaitLimit
from sa_doclock.core.session import context_of
from sa_doclock.core.session_options import SessionOptions
from sa_doclock.core.transaction import LockRequest
from sa_doclock.dialects import strategy_classes
from sa_doclock.dialects.base import LockStrategy
from sa_doclock.features.batch import retry_without_queueing
from sa_doclock.options import (
    BATCH_WAIT,
    LONGEST_WAIT,
    base_of,
    check_wait,
    is_row_lock,
    may_queue,
    milliseconds,
)
from tests.support.models import Base, Order
from tests.support.rows import rows
from tests.unit.test_lock_options import LEGAL

pytestmark = pytest.mark.each_value

FOR_UPDATE, SHARED, NO_WAIT, SKIP_LOCKED = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.NoWait,
    LockOptions.SkipLocked,
)
NEVER_WAIT = [lock for lock in LEGAL if not is_row_lock(lock)]
POSTGRESQL_MOST = 2**31 - 1


@rows("lock", LEGAL, ids=str)
def test_none_leaves_it_to_the_server(lock: LockOptions) -> None:
    assert check_wait(lock, None) == (lock, None)


@pytest.mark.parametrize("lock", [SHARED, FOR_UPDATE])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0.3, 0.3), (2, 2.0), (timedelta(seconds=1.5), 1.5), (timedelta(microseconds=1), 1e-6)],
    ids=str,
)
def test_seconds_or_a_timedelta(lock: LockOptions, value: Any, seconds: float) -> None:
    assert check_wait(lock, value) == (lock, seconds)


@pytest.mark.parametrize("lock", [SHARED, FOR_UPDATE])
@pytest.mark.parametrize("zero", [0, 0.0, -0.0, timedelta(0)], ids=repr)
def test_zero_is_nowait(lock: LockOptions, zero: Any) -> None:
    assert check_wait(lock, zero) == (lock | NO_WAIT, None)
    assert check_wait(lock | NO_WAIT, zero) == (lock | NO_WAIT, None)


@pytest.mark.parametrize("huge", [1e308, timedelta.max, 10**400], ids=["float", "timedelta", "int"])
def test_a_huge_value_is_as_long_as_every_server_can(huge: Any) -> None:
    lock, seconds = check_wait(FOR_UPDATE, huge)
    assert (lock, seconds) == (FOR_UPDATE, LONGEST_WAIT)
    assert milliseconds(LONGEST_WAIT) <= POSTGRESQL_MOST


NO_WAITS = {
    "negative": -1,
    "a little negative": -1e-9,
    "negative timedelta": timedelta(microseconds=-1),
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}
NO_NUMBERS = {
    "bool": True,
    "False": False,
    "str": "1",
    "bytes": b"1",
    "Decimal": Decimal(1),
    "Fraction": Fraction(1),
    "complex": 1j,
    "tuple": (1,),
}


@pytest.mark.parametrize("value", NO_WAITS.values(), ids=NO_WAITS)
def test_a_value_that_is_no_wait_is_refused(
    session: LockingSession, sent: list[str], value: Any
) -> None:
    with pytest.raises(ValueError, match="lock_timeout"):
        session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=value)
    assert sent == []


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_value_that_is_no_number_is_refused(
    session: LockingSession, sent: list[str], value: Any
) -> None:
    with pytest.raises(TypeError, match="lock_timeout must be seconds, a timedelta or None"):
        session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=value)
    assert sent == []


@pytest.mark.parametrize("lock", NEVER_WAIT, ids=str)
@pytest.mark.parametrize("value", [0, 0.3, timedelta(1)], ids=str)
def test_it_has_no_meaning_with_a_read_that_never_waits(lock: LockOptions, value: Any) -> None:
    with pytest.raises(ValueError, match="never waits"):
        check_wait(lock, value)


@pytest.mark.parametrize("lock", [SHARED, FOR_UPDATE])
def test_skip_locked_takes_one_since_it_may_wait_for_a_table(lock: LockOptions) -> None:
    assert check_wait(lock | SKIP_LOCKED, 0.3) == (lock | SKIP_LOCKED, 0.3)
    with pytest.raises(ValueError, match="lock_timeout=0 is NoWait, which collides"):
        check_wait(lock | SKIP_LOCKED, 0)


@pytest.mark.parametrize("lock", [SHARED, FOR_UPDATE])
def test_a_positive_one_collides_with_nowait(lock: LockOptions) -> None:
    with pytest.raises(ValueError, match=r"LockOptions\.NoWait collide"):
        check_wait(lock | NO_WAIT, 0.3)


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False))
def test_any_wait_is_rounded_up_and_never_to_none_or_for_ever(value: float) -> None:
    _, seconds = check_wait(FOR_UPDATE, value)
    assert seconds is not None
    assert 1 <= milliseconds(seconds) <= POSTGRESQL_MOST
    assert milliseconds(seconds) >= min(value, LONGEST_WAIT) * 1000


@given(st.one_of(st.none(), st.floats(), st.integers(), st.timedeltas(), st.text(), st.booleans()))
def test_whatever_is_given_is_a_wait_or_a_clear_refusal(value: Any) -> None:
    try:
        lock, seconds = check_wait(FOR_UPDATE, value)
    except (TypeError, ValueError) as error:
        assert "lock_timeout" in str(error)  # noqa: PT017
    else:
        assert (seconds is None) is (value is None or NO_WAIT in lock)


@rows("url", ["mariadb+pymysql://", "mysql+pymysql://", "postgresql+psycopg://"])
def test_the_text_with_its_limit_is_made_once_and_freed_with_the_statement(url: str) -> None:
    given, sent = [select(Order)], list[Any]()
    engine = create_engine(url)
    strategy = strategy_classes()[engine.url.get_backend_name()](engine.dialect)
    limit = WaitLimit(strategy, FOR_UPDATE, 1.0)
    for _ in range(2):
        limit.send(lambda _: given[0], sent.append)
    assert sent[0] is sent[1]
    kept = weakref.ref(given.pop())
    sent.clear()
    gc.collect()
    assert kept() is None


# --------------------------------------------------------------------------------------------------
# A lock timeout comes from the call, else from the session, else there is none.


def test_three_locks_may_have_to_queue() -> None:
    assert [lock for lock in LEGAL if may_queue(lock)] == [
        lock for lock in LEGAL if lock in (FOR_UPDATE, SHARED, FOR_UPDATE | LockOptions.NoKey)
    ]
    assert all(is_row_lock(lock) for lock in LEGAL if may_queue(lock))


#: The session's lock_timeout, its priority, and the call's lock_timeout: the lock, the seconds.
TABLE: dict[str, tuple[Any, Any, Any, tuple[LockOptions, float | None]]] = {
    "nobody says anything": (None, "interactive", None, (FOR_UPDATE, None)),
    "the session does": (1.5, "interactive", None, (FOR_UPDATE, 1.5)),
    "a timedelta": (timedelta(seconds=2), "interactive", None, (FOR_UPDATE, 2.0)),
    "the session does not wait": (0, "interactive", None, (FOR_UPDATE | NO_WAIT, None)),
    "the call says more": (1.5, "interactive", 2.5, (FOR_UPDATE, 2.5)),
    "the call says less": (1.5, "interactive", 0.5, (FOR_UPDATE, 0.5)),
    "the call does not wait": (1.5, "interactive", 0, (FOR_UPDATE | NO_WAIT, None)),
    "the call waits all the same": (0, "interactive", 3, (FOR_UPDATE, 3.0)),
    "a batch": (None, "batch", None, (FOR_UPDATE, BATCH_WAIT)),
    "a batch with a limit": (1.5, "batch", None, (FOR_UPDATE, 1.5)),
    "a batch whose call has one": (1.5, "batch", 90, (FOR_UPDATE, 90.0)),
    "a batch that does not wait": (0, "batch", None, (FOR_UPDATE | NO_WAIT, None)),
    "a batch whose call does not": (None, "batch", 0, (FOR_UPDATE | NO_WAIT, None)),
}


@rows(("session", "priority", "call", "wanted"), TABLE.values(), ids=TABLE)
def test_who_counts_more(session: Any, priority: Any, call: Any, wanted: Any) -> None:
    made = LockingSession(lock_timeout=session, priority=priority)
    assert context_of(made).options.resolve(FOR_UPDATE, call) == wanted


@rows("lock", [lock for lock in LEGAL if not may_queue(lock)], ids=str)
def test_what_never_queues_has_no_limit(lock: LockOptions) -> None:
    for seconds in (None, 0, 1.5):
        assert SessionOptions({}, seconds).resolve(lock, None) == (lock, None)


def test_true_is_no_time_though_it_equals_one() -> None:
    wait: Any = SessionOptions({})
    assert wait.resolve(FOR_UPDATE, 1) == (FOR_UPDATE, 1.0)
    with pytest.raises(TypeError, match="True"):
        wait.resolve(FOR_UPDATE, True)


@given(st.sampled_from(LEGAL), st.one_of(st.none(), st.floats(0, 1e6)))
def test_the_base_of_a_lock_stays(lock: LockOptions, seconds: float | None) -> None:
    chosen, left = SessionOptions({}, seconds).resolve(lock, None)
    assert base_of(chosen) is base_of(lock)
    assert (left is None) or left > 0


@pytest.mark.parametrize("value", NO_WAITS.values(), ids=NO_WAITS)
def test_a_session_refuses_what_is_no_wait(value: Any) -> None:
    for make in (LockingSession, AsyncLockingSession, sessionmaker(class_=LockingSession)):
        with pytest.raises(ValueError, match="lock_timeout must be zero or more seconds"):
            make(lock_timeout=value)


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_session_refuses_what_is_no_number(value: Any) -> None:
    for make in (LockingSession, AsyncLockingSession, sessionmaker(class_=LockingSession)):
        with pytest.raises(TypeError, match="lock_timeout must be seconds, a timedelta or None"):
            make(lock_timeout=value)


WAYS: dict[str, Any] = {
    "get_one_entity": lambda session, value: session.get_one_entity(
        Order, 1, FOR_UPDATE, lock_timeout=value
    ),
    "get_entities": lambda session, value: session.get_entities(
        Order, [1], FOR_UPDATE, lock_timeout=value
    ),
    "get_document": lambda session, value: session.get_document(
        Order, 1, FOR_UPDATE, lock_timeout=value
    ),
    "get_documents": lambda session, value: session.get_documents(
        Order, [1], FOR_UPDATE, lock_timeout=value
    ),
    "locked": lambda session, value: session.locked(Order, 1, lock_timeout=value).__enter__(),
    "entity_set": lambda session, value: session.entity_set(Order, FOR_UPDATE, lock_timeout=value),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_so_does_every_way_to_lock(session: LockingSession, sent: list[str], way: Any) -> None:
    for value in NO_WAITS.values():
        with pytest.raises(ValueError, match="lock_timeout"):
            way(session, value)
    for value in NO_NUMBERS.values():
        with pytest.raises(TypeError, match="lock_timeout must be seconds"):
            way(session, value)
    assert sent == []


@pytest.mark.parametrize(
    "lock",
    [LockOptions.None_, LockOptions.NoLock, LockOptions.SnapshotRead],
    ids=str,
)
def test_a_set_that_never_waits_takes_none(session: LockingSession, lock: LockOptions) -> None:
    for value in (0, 0.5, timedelta(1)):
        with pytest.raises(ValueError, match="never waits"):
            session.entity_set(Order, lock, lock_timeout=value)
    with pytest.raises(ValueError, match="collide"):
        session.entity_set(Order, FOR_UPDATE | NO_WAIT, lock_timeout=0.5)
    with pytest.raises(TypeError, match="lock must be a LockOptions"):
        session.entity_set(Order, True, lock_timeout=0.5)  # type: ignore[call-overload]
    assert math.isfinite(BATCH_WAIT)


def no_pause(seconds: float) -> None:
    pytest.fail(f"it has paused for {seconds} s")


def test_a_batch_tries_again_and_repeats_nothing_else() -> None:
    asked: list[Any] = []
    pauses: list[float] = []

    def attempt(left: float) -> str:
        asked.append(left)
        if len(asked) < 4:
            raise LockNotAvailable("held")
        return "granted"

    assert retry_without_queueing(60, attempt, pauses.append) == "granted"
    assert asked == [60] * 4  # whole seconds, for a table under ALTER
    assert len(pauses) == 3
    assert all(0 <= pause <= 0.5 for pause in pauses)

    def fail(_: float) -> None:
        asked.append("failed")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        retry_without_queueing(60, fail, no_pause)
    assert asked.count("failed") == 1


# --------------------------------------------------------------------------------------------------
# WaitLimit: what remains after an error, and what a target requests, without a server.

ForUpdate = LockOptions.ForUpdate
NoWait = ForUpdate | LockOptions.NoWait
SkipLocked = ForUpdate | LockOptions.SkipLocked
#: ER_LOCK_WAIT_TIMEOUT limits a wait for a lock, ER_QUERY_TIMEOUT a whole statement.
WAIT, STATEMENT = 1205, 3024


def mysql() -> LockStrategy:
    dialect = sa.create_engine("mysql+pymysql://").dialect
    return strategy_classes()["mysql"](dialect)


def error_of(kind: type[DBAPIError], code: int) -> DBAPIError:
    return kind("SELECT", {}, pymysql.err.OperationalError(code, "of a test"))


def refused(code: int) -> DBAPIError:
    return LockNotAvailable(
        "held", statement=None, params=None, orig=pymysql.err.OperationalError(code, "of a test")
    )


AGAIN = {
    "the server's limit is shorter": (ForUpdate, 5.0, refused(WAIT), 2.0, (ForUpdate, 5.0, 3.0)),
    "and nothing is left": (ForUpdate, 5.0, refused(WAIT), 5.0, None),
    "and there is no other": (ForUpdate, None, refused(WAIT), 2.0, None),
    "a slow statement": (
        *(ForUpdate, None, error_of(OperationalError, STATEMENT), 2.0),
        (NoWait, None, 0.0),
    ),
    "a slow statement with a limit": (
        *(ForUpdate, 5.0, error_of(OperationalError, STATEMENT), 2.0),
        (NoWait, 5.0, 5.0),
    ),
    "our limit, too short for a busy server": (
        *(ForUpdate, 0.1, refused(STATEMENT), 0.1),
        (NoWait, 0.25, 0.25),
    ),
    "our limit": (ForUpdate, 5.0, refused(STATEMENT), 5.0, None),
    "without a wait": (NoWait, None, error_of(OperationalError, STATEMENT), 2.0, None),
    "a slow statement that skips": (
        *(SkipLocked, None, error_of(OperationalError, STATEMENT), 2.0),
        None,
    ),
    "another error": (ForUpdate, 5.0, error_of(OperationalError, 1064), 0.0, None),
}


@rows("what", AGAIN)
def test_one_more_try(what: str) -> None:
    lock, seconds, error, waited, expected = AGAIN[what]
    again = WaitLimit(mysql(), lock, seconds).again(error, waited)
    found = None if again is None else (again.lock, again.seconds, again.left())
    assert found == expected


def test_the_tries_of_one_statement_share_its_time() -> None:
    limit = WaitLimit(mysql(), ForUpdate, 5.0).again(refused(WAIT), 2.0)
    assert limit is not None
    assert limit.again(refused(WAIT), 3.0) is None


def test_asking_what_is_held_changes_nothing(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/held.db")
    Base.metadata.create_all(engine)
    mapper = mapper_of(Order)
    with LockingSession(engine) as session:
        session.add_all(Order(id=ident, total=0) for ident in (1, 2, 3))
        session.commit()
        session.get_entity(Order, 2, ForUpdate)
        keys = [(1,), (2,), (3,)]
        request = LockRequest(Order, None, ForUpdate, None, mapper, keys)
        target = ManyByKey[Order](context_of(session), request)
        before = dict(vars(target))
        for _ in range(2):
            asked = target.not_held()
            assert asked is not None
            assert asked.keys == [(1,), (3,)]
        assert vars(target) == before
        session.get_entities(Order, [1, 3], ForUpdate)
        assert target.not_held() is None
