"""Wrong arguments of get_entities() are refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import joinedload

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.integration.locking.steps import recorded
from tests.support.models import Order, Voucher
from tests.support.rows import rows

ForUpdate = LockOptions.ForUpdate
LOCKS = (LockOptions.None_, LockOptions.NoLock, LockOptions.SharedRead, ForUpdate)
Call = Callable[[LockingSession, LockOptions], Any]

CALLS: dict[str, tuple[Call, type[Exception], str]] = {
    "a string": (lambda s, k: s.get_entities(Order, "12", k), TypeError, "'12'"),
    "bytes": (lambda s, k: s.get_entities(Order, b"12", k), TypeError, "b'12'"),
    "a scalar": (lambda s, k: s.get_entities(Order, 1, k), TypeError, "not 1$"),  # type: ignore[arg-type]
    "None": (lambda s, k: s.get_entities(Order, None, k), TypeError, "not None"),  # type: ignore[arg-type]
    "a dict": (lambda s, k: s.get_entities(Order, {"id": 1}, k), TypeError, "'id': 1"),
    "a key of None": (lambda s, k: s.get_entities(Order, [1, None], k), ValueError, "NULL"),
    "too many values": (
        lambda s, k: s.get_entities(Order, [1, (1, 2)], k),
        ValueError,
        r"\(1, 2\)",
    ),
    "too few values": (lambda s, k: s.get_entities(Voucher, [(2024,)], k), ValueError, r"2024,\)"),
    "one composite key": (
        lambda s, k: s.get_entities(Voucher, (2024, 1), k),
        ValueError,
        r"\(year, number\), not 2024",
    ),
    "a wrong name": (lambda s, k: s.get_entities(Order, [{"nr": 1}], k), ValueError, "'nr'"),
    "no number": (
        lambda s, k: s.get_entities(Order, [1, "b"], k),
        ValueError,
        "'b' is not a number",
    ),
    "a part that is None": (
        lambda s, k: s.get_entities(Voucher, [(2024, None), (2024, 1)], k),
        ValueError,
        "order",
    ),
    "no mapped class": (lambda s, k: s.get_entities(int, [1], k), TypeError, "mapped class"),
    "options": (lambda s, k: s.get_entities(Order, [1], k, options=["x"]), TypeError, "option"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_it_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: LockingSession, case: tuple[Call, type[Exception], str]
) -> None:
    call, error, text = case
    for lock in LOCKS:
        with recorded(engine) as statements, pytest.raises(error, match=text):
            call(session, lock)
        assert statements == []
        assert not session.in_transaction()
        assert not session.held_locks


@rows(
    "lock, how, text",
    [
        (ForUpdate | LockOptions.SharedRead, {}, "SharedRead and LockOptions.ForUpdate"),
        (ForUpdate | LockOptions.NoWait | LockOptions.SkipLocked, {}, "NoWait"),
        (LockOptions.SkipLocked, {}, "SkipLocked"),
        (ForUpdate | LockOptions.NoWait, {"lock_timeout": 1}, "NoWait"),
        (ForUpdate | LockOptions.SkipLocked, {"lock_timeout": 0}, "SkipLocked"),
        (LockOptions.None_, {"lock_timeout": 1}, "never waits"),
        (LockOptions.SnapshotRead, {"lock_timeout": 1}, "never waits"),
        (ForUpdate, {"lock_timeout": -1}, "zero or more"),
    ],
)
def test_what_contradicts_itself_is_refused(
    session: LockingSession, lock: LockOptions, how: dict[str, Any], text: str
) -> None:
    for keys in ([1, 2], []):
        with pytest.raises(ValueError, match=text):
            session.get_entities(Order, keys, lock, **how)
    assert not session.in_transaction()


def test_a_join_that_would_be_locked_along_is_refused(
    engine: sa.Engine, session: LockingSession
) -> None:
    joined = [joinedload(Order.lines)]
    with recorded(engine) as statements, pytest.raises(LockNotSupported, match="joinedload"):
        session.get_entities(Order, [1, 2], ForUpdate, options=joined)
    assert statements == []
    assert len(session.get_entities(Order, [1, 2], options=joined)) == 2  # a plain read may
