"""Wrong arguments are refused before anything is sent, or a transaction begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, exc, select
from sqlalchemy.orm import aliased, selectinload

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockNotSupported,
    LockOptions,
    with_lock,
)
from tests.support.models import Customer, Order
from tests.support.rows import rows

FOR_UPDATE = LockOptions.ForUpdate
Call = Callable[[LockingSession, Any], Any]

CALLS: dict[str, Call] = {
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
    """Give a session that must neither send anything nor begin a transaction in the test."""
    yield session
    assert sent == []
    assert not session.in_transaction()
    assert not session.held_locks


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
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
