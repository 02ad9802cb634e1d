"""LockOptions: the values that are stored in people's settings, and what goes together."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from functools import reduce
from itertools import chain, combinations
from operator import or_
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockOptions, with_lock
from sa_doclock.options import base_of, check_lock, is_row_lock, lock_label
from tests.support.models import Order
from tests.support.rows import rows

VALUES = {
    "None_": 0,
    "NoLock": 1,
    "SharedRead": 2,
    "ForUpdate": 4,
    "NoWait": 8,
    "SkipLocked": 16,
    "SnapshotRead": 32,
    "NoKey": 64,
}
BITS = [LockOptions(value) for value in VALUES.values() if value]
ALL = [
    reduce(or_, members, LockOptions.None_)
    for members in chain.from_iterable(combinations(BITS, size) for size in range(len(BITS) + 1))
]
LEGAL = (
    LockOptions.None_,
    LockOptions.NoLock,
    LockOptions.SnapshotRead,
    LockOptions.SharedRead,
    LockOptions.SharedRead | LockOptions.NoWait,
    LockOptions.SharedRead | LockOptions.SkipLocked,
    LockOptions.ForUpdate,
    LockOptions.ForUpdate | LockOptions.NoWait,
    LockOptions.ForUpdate | LockOptions.SkipLocked,
    LockOptions.ForUpdate | LockOptions.NoKey,
    LockOptions.ForUpdate | LockOptions.NoKey | LockOptions.NoWait,
    LockOptions.ForUpdate | LockOptions.NoKey | LockOptions.SkipLocked,
)
CONTRADICTORY = [lock for lock in ALL if lock not in LEGAL]
NAMED = re.compile(r"LockOptions\.(\w+)")


def test_the_values_are_those_of_the_contract() -> None:
    assert {name: member.value for name, member in LockOptions.__members__.items()} == VALUES


def test_there_are_128_sets_of_which_12_are_legal() -> None:
    assert len(set(ALL)) == 128
    assert len(LEGAL) == 12


@rows("lock", LEGAL, ids=str)
def test_a_legal_set_comes_back(lock: LockOptions) -> None:
    assert check_lock(lock) is lock


@rows("lock", CONTRADICTORY, ids=str)
def test_a_contradictory_set_is_refused_by_the_names_of_two_members(lock: LockOptions) -> None:
    with pytest.raises(ValueError, match="collide") as caught:
        check_lock(lock)
    one, other = NAMED.findall(str(caught.value))
    assert one != other
    none = {"None_"} if base_of(lock) is LockOptions.None_ else set()
    assert {one, other} <= {name for name, value in VALUES.items() if value & lock.value} | none


CALLS: dict[str, Callable[[LockingSession, LockOptions], Any]] = {
    "get_entity": lambda session, lock: session.get_entity(Order, 1, lock),
    "get_one_entity": lambda session, lock: session.get_one_entity(Order, 1, lock),
    "entity_set": lambda session, lock: session.entity_set(Order, lock),
    "locked": lambda session, lock: session.locked(Order, 1, lock).__enter__(),
    "with_lock": lambda _, lock: with_lock(select(Order), lock),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_refuses_a_contradictory_set_and_sends_nothing(
    session: LockingSession, sent: list[str], call: Callable[..., Any]
) -> None:
    for lock in CONTRADICTORY:
        with pytest.raises(ValueError, match=r"LockOptions\.\w+ and LockOptions\.\w+ collide"):
            call(session, lock)
    assert sent == []


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@rows("lock", [4, "ForUpdate", None, True, Session])
def test_every_call_refuses_what_is_no_lock_option(
    session: LockingSession, sent: list[str], call: Callable[..., Any], lock: Any
) -> None:
    with pytest.raises(TypeError, match="must be a LockOptions member"):
        call(session, lock)
    assert sent == []


@rows("lock", ALL, ids=str)
def test_a_set_stays_itself_when_copied_pickled_or_hashed(lock: LockOptions) -> None:
    assert pickle.loads(pickle.dumps(lock)) is lock
    assert copy.deepcopy(lock) is lock
    assert {lock: "found"}[LockOptions(lock.value)] == "found"


def test_the_base_is_what_is_left_without_modifiers() -> None:
    modified = LockOptions.ForUpdate | LockOptions.NoWait
    assert base_of(modified) is LockOptions.ForUpdate
    assert base_of(LockOptions.NoWait) is LockOptions.None_


def test_row_locks_are_those_that_may_have_to_wait() -> None:
    queueing = {LockOptions.SharedRead, LockOptions.ForUpdate}
    assert {lock for lock in LEGAL if is_row_lock(lock)} == {
        lock for lock in LEGAL if base_of(lock) in queueing
    }


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (LockOptions.None_, "plain read"),
        (LockOptions.NoLock, "NOLOCK"),
        (LockOptions.SharedRead | LockOptions.NoWait, "SHARED READ NOWAIT"),
        (LockOptions.ForUpdate | LockOptions.SkipLocked, "FOR UPDATE SKIP LOCKED"),
        (LockOptions.SnapshotRead, "SNAPSHOT READ"),
        (LockOptions.ForUpdate | LockOptions.NoKey, "FOR NO KEY UPDATE"),
    ],
)
def test_a_lock_is_spelled_in_the_words_of_sql(lock: LockOptions, words: str) -> None:
    assert lock_label(lock) == words
