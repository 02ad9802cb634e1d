"""lock_timeout: seconds, whatever the database counts in; 0 is NoWait, None is the server's."""

from __future__ import annotations

import gc
import math
import weakref
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, select

from sa_doclock import LockingSession, LockOptions
from sa_doclock.core.locking import WaitLimit
from sa_doclock.dialects import strategy_classes
from sa_doclock.options import LONGEST_WAIT, check_wait, is_row_lock, milliseconds
from tests.support.models import Order
from tests.support.rows import rows
from tests.unit.test_lock_options import LEGAL

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
NO_WAIT, SKIP_LOCKED = LockOptions.NoWait, LockOptions.SkipLocked
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
