"""LockOptions: the values stored in users' settings, and the combinations that are legal."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import chain, combinations
from operator import or_
from typing import Any

import pytest
from sqlalchemy import Engine, exc, select
from sqlalchemy.orm import Session, aliased, selectinload

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    with_lock,
)
from sa_doclock.options import base_of, check_lock, is_row_lock, lock_label
from tests.support.models import Customer, Order
from tests.support.rows import rows

pytestmark = pytest.mark.each_value

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


# --------------------------------------------------------------------------------------------------
# Wrong arguments fail before anything is sent and before a transaction begins.

FOR_UPDATE = LockOptions.ForUpdate
Call = Callable[[LockingSession, Any], Any]

CALLS_BAD_INPUT: dict[str, Call] = {
    "get_entity": lambda session, entity: session.get_entity(entity, 1, FOR_UPDATE),
    "get_entity plain": lambda session, entity: session.get_entity(entity, 1),
    "get_one_entity": lambda session, entity: session.get_one_entity(entity, 1, FOR_UPDATE),
    "locked": lambda session, entity: session.locked(entity, 1).__enter__(),
}
NO_ENTITIES = {
    "str": "Order",
    "None": None,
    "instance": Order(),
    "table": Order.__table__,
    "alias": aliased(Order),
    "unmapped": dict,
    "list": [Order],
}


@pytest.fixture
def unused(session: LockingSession, sent: list[str]) -> Iterator[LockingSession]:
    """Provide a session that must neither send a statement nor begin a transaction during the test."""
    yield session
    assert sent == []
    assert not session.in_transaction()
    assert not session.held_locks


@pytest.mark.parametrize("call", CALLS_BAD_INPUT.values(), ids=CALLS_BAD_INPUT)
@rows("entity", NO_ENTITIES.values(), ids=NO_ENTITIES)
def test_what_is_no_mapped_class(unused: LockingSession, call: Call, entity: Any) -> None:
    with pytest.raises(TypeError, match="entity must be a mapped class"):
        call(unused, entity)


@pytest.mark.parametrize("lock", [LockOptions.None_, FOR_UPDATE])
@rows("entity", ["Order", None, Order.__table__, dict, [Order]])
def test_a_set_of_what_is_no_mapped_class(
    unused: LockingSession, entity: Any, lock: LockOptions
) -> None:
    with pytest.raises((TypeError, LockNotSupported, exc.ArgumentError)):
        unused.entity_set(entity, lock)


@pytest.mark.parametrize("base", [LockOptions.SharedRead, FOR_UPDATE])
@pytest.mark.parametrize("method", ["get_entity", "get_one_entity"])
def test_skip_locked_of_one_document(
    unused: LockingSession, base: LockOptions, method: str
) -> None:
    with pytest.raises(ValueError, match="SkipLocked is for sets"):
        getattr(unused, method)(Order, 1, base | LockOptions.SkipLocked)


def test_skip_locked_in_a_block(unused: LockingSession) -> None:
    with (
        pytest.raises(ValueError, match="SkipLocked is for sets"),
        unused.locked(Order, 1, FOR_UPDATE | LockOptions.SkipLocked),
    ):
        pytest.fail("the block was entered")


BLOCKS: dict[str, Call] = {
    "locked": lambda session, lock: session.locked(Order, 1, lock),
    "locked, a select": lambda session, lock: session.locked(select(Order), lock=lock),
    "locked_document": lambda session, lock: session.locked_document(Order, 1, lock),
    "locked_documents": lambda session, lock: session.locked_documents(Order, [1], lock),
}


@pytest.mark.parametrize("session_class", [LockingSession, AsyncLockingSession])
@pytest.mark.parametrize("call", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize(
    ("lock", "error"),
    [
        (FOR_UPDATE | LockOptions.SharedRead, ValueError),
        (LockOptions.None_, ValueError),
        ("ForUpdate", TypeError),
    ],
    ids=["contradictory", "none", "a text"],
)
def test_a_wrong_lock_of_a_block_is_an_error_of_the_call(
    session_class: type[Any], call: Call, lock: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"collide|needs a lock|must be a LockOptions member"):
        call(session_class(), lock)  # without "with"


@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.NoLock])
def test_a_block_without_a_lock(unused: LockingSession, lock: LockOptions) -> None:
    with (
        pytest.raises(ValueError, match=r"locked\(\) needs a lock"),
        unused.locked(Order, 1, lock),
    ):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("lock", [LockOptions.None_, FOR_UPDATE])
@rows("options", [selectinload(Order.lines), ["lines"], "lines", [Order.lines], 1])
def test_options_that_are_no_loader_options(
    unused: LockingSession, options: Any, lock: LockOptions
) -> None:
    with pytest.raises((TypeError, exc.ArgumentError)):
        unused.get_entity(Order, 1, lock, options=options)


@pytest.mark.parametrize("lock", [LockOptions.None_, FOR_UPDATE])
def test_options_may_come_from_a_generator(session: LockingSession, lock: LockOptions) -> None:
    options: Any = (option for option in [selectinload(Order.lines)])
    order = session.get_one_entity(Order, 1, lock, options=options)
    assert "lines" in order.__dict__


def test_skip_locked_where_there_is_nothing_to_skip(unused: LockingSession) -> None:
    with pytest.raises(LockNotSupported, match="SQLite locks the file, not rows"):
        unused.scalars(unused.entity_set(Order, FOR_UPDATE | LockOptions.SkipLocked))


@pytest.mark.parametrize("options", [{"yield_per": 10}, {"stream_results": True}], ids=str)
def test_a_locked_set_is_not_streamed(unused: LockingSession, options: dict[str, Any]) -> None:
    everything = unused.entity_set(Order, FOR_UPDATE)
    with pytest.raises(LockNotSupported, match="read in one piece"):
        unused.scalars(everything.execution_options(**options))
    with pytest.raises(LockNotSupported, match="read in one piece"):
        unused.scalars(everything, execution_options=options)


def test_release_without_a_transaction_does_nothing(unused: LockingSession) -> None:
    unused.release_locks()
    unused.save_changes()


def test_release_in_a_transaction_of_the_callers(session: LockingSession, sent: list[str]) -> None:
    with session.begin():
        session.get_entity(Order, 1, FOR_UPDATE)
        sent.clear()
        with pytest.raises(LockMisuse, match=r"begin\(\)"):
            session.release_locks()
        assert sent == []
        assert session.held_locks


AFTER_CLOSE: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda session: session.get_entity(Order, 1, FOR_UPDATE),
    "get_entity plain": lambda session: session.get_entity(Order, 1),
    "get_one_entity": lambda session: session.get_one_entity(Order, 1, FOR_UPDATE),
    "locked": lambda session: session.locked(Order, 1).__enter__(),
    "a set": lambda session: session.scalars(with_lock(select(Order), FOR_UPDATE)),
}


@pytest.mark.parametrize("call", AFTER_CLOSE.values(), ids=AFTER_CLOSE)
def test_use_after_close(
    engine: Engine, sent: list[str], call: Callable[[LockingSession], Any]
) -> None:
    session = LockingSession(engine, close_resets_only=False)
    session.close()
    with pytest.raises(exc.InvalidRequestError, match="permanently closed"):
        call(session)
    assert sent == []


@rows("call", AFTER_CLOSE.values(), ids=AFTER_CLOSE)
def test_a_session_without_an_engine(call: Callable[[LockingSession], Any]) -> None:
    with LockingSession() as session, pytest.raises(exc.UnboundExecutionError):
        call(session)


@pytest.mark.parametrize("call", AFTER_CLOSE.values(), ids=AFTER_CLOSE)
def test_a_session_whose_flush_has_failed(
    session: LockingSession, sent: list[str], call: Callable[[LockingSession], Any]
) -> None:
    session.begin()
    session.add(Customer(id=1, name="there is one"))
    with pytest.raises(exc.IntegrityError):
        session.flush()
    sent.clear()
    with pytest.raises(exc.PendingRollbackError):
        call(session)
    assert sent == []
    session.rollback()
