"""Sets: a statement locks all rows that it returns; SkipLocked leaves out rows that others hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import text

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    UnsavedChanges,
)
from tests.integration.locking.expectations import READER_AFTER_WRITER, WAITS, on
from tests.integration.locking.steps import finds_held, save
from tests.support.actors import Actor
from tests.support.models import Contract, Lease, Line, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead, SkipLocked = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SkipLocked,
)


def idents(session: LockingSession, entity: Any, lock: LockOptions) -> list[int]:
    """Lock all rows of this class, and return their keys."""
    rows = session.scalars(session.entity_set(entity, lock).order_by(entity.id))
    return [row.id for row in rows]


def test_a_set_waits_for_each_of_its_rows(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def totals(session: LockingSession) -> list[int]:
        rows = session.scalars(session.entity_set(Order, ForUpdate).order_by(Order.id))
        return [order.total for order in rows]

    def raise_total(session: LockingSession) -> None:
        session.get_one_entity(Order, 2, ForUpdate).total = 6
        session.flush()

    alice.does(raise_total)
    queued = bob.starts(totals)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == [30, 6]


def test_every_row_of_a_set_is_held(session: LockingSession) -> None:
    for lock in (ForUpdate, SharedRead):
        assert idents(session, Order, lock) == [1, 2]
        assert dict(session.held_locks) == {(Order, (1,)): lock, (Order, (2,)): lock}
        session.rollback()


def test_every_row_of_a_set_is_locked(session: LockingSession, other: LockingSession) -> None:
    idents(session, Order, ForUpdate)
    assert finds_held(Order, 1)(other)
    assert finds_held(Order, 2)(other)


@pytest.mark.not_databases("sqlite")
def test_a_row_that_the_set_does_not_return_is_not_locked(
    session: LockingSession, other: LockingSession
) -> None:
    session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 1)).one()
    assert not finds_held(Order, 2)(other)


@pytest.mark.not_databases("sqlite")
def test_a_set_with_a_join_locks_the_headers_alone(
    session: LockingSession, other: LockingSession
) -> None:
    query = session.entity_set(Order, ForUpdate).join(Order.lines).where(Line.value == 20)
    assert session.scalars(query).one().id == 1
    assert finds_held(Order, 1)(other)
    assert not finds_held(Line, 2)(other)
    assert not finds_held(Order, 2)(other)


@pytest.mark.not_databases("sqlite")
def test_what_another_holds_is_left_out(session: LockingSession, other: LockingSession) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    assert idents(session, Order, ForUpdate | SkipLocked) == [2]
    assert list(session.held_locks) == [(Order, (2,))]
    other.release_locks()
    assert finds_held(Order, 2)(other)
    assert not finds_held(Order, 1)(other)


@pytest.mark.not_databases("sqlite")
def test_rows_of_joined_inheritance_are_left_out(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Lease, 1, ForUpdate)
    assert idents(session, Contract, ForUpdate | SkipLocked) == [2]
    assert idents(session, Lease, ForUpdate | SkipLocked) == []


@pytest.mark.not_databases("sqlite")
def test_a_limit_takes_the_next_that_is_free(
    session: LockingSession, other: LockingSession
) -> None:
    query = session.entity_set(Order, ForUpdate | SkipLocked).order_by(Order.id).limit(1)
    other.get_one_entity(Order, 1, ForUpdate)
    assert session.scalars(query).one().id == 2


@on(READER_AFTER_WRITER, WAITS)
def test_a_reader_leaves_out_what_a_writer_holds(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    assert idents(session, Order, SharedRead | SkipLocked) == [2]


@on(READER_AFTER_WRITER, WAITS)
def test_a_reader_leaves_out_nothing_for_a_reader(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Order, 1, SharedRead)
    assert idents(session, Order, SharedRead | SkipLocked) == [1, 2]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_sqlite_has_nothing_to_skip(session: LockingSession, lock: LockOptions) -> None:
    with pytest.raises(LockNotSupported, match="SQLite locks the file, not rows"):
        idents(session, Order, lock | SkipLocked)
    assert not session.in_transaction()


@pytest.mark.not_databases("sqlite")
def test_it_takes_a_limit_to_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def limited(session: LockingSession) -> list[int]:
        orders = session.entity_set(Order, ForUpdate | SkipLocked, lock_timeout=0.3)
        return [order.id for order in session.scalars(orders.order_by(Order.id))]

    alice.does(lambda session: session.get_one_entity(Order, 1, ForUpdate))
    assert bob.does(limited) == [2]


@pytest.mark.databases("postgresql")
def test_a_table_that_is_locked_is_waited_for_no_longer(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def limited(session: LockingSession) -> None:
        session.scalars(session.entity_set(Order, ForUpdate | SkipLocked, lock_timeout=0.3)).all()

    table = Order.__table__.name  # type: ignore[attr-defined]
    alice.does(lambda session: session.execute(text(f"LOCK TABLE {table} IN EXCLUSIVE MODE")))
    with pytest.raises(LockNotAvailable, match=r"not granted within 0\.3 s"):
        bob.does(limited)


# --------------------------------------------------------------------------------------------------
# A key given as text, as in a URL: the database accepts "1" for 1, the session does not.

Session = LockingSession
Ask = Callable[[Session], Any]

ASKED: dict[str, Ask] = {
    "get_one_entity": lambda session: session.get_one_entity(Order, "1", ForUpdate),
    "get_document": lambda session: session.get_document(Order, "1", ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, ["1"], ForUpdate)[0],
}


@pytest.mark.read_committed
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_what_was_read_before_is_fresh(
    session: Session, elsewhere: Callable[..., Any], ask: Ask
) -> None:
    order = session.get_one(Order, 1)
    line = order.lines[0]
    assert (order.total, line.value) == (30, 10)
    session.commit()
    assert (order.total, line.value) == (30, 10)
    session.rollback()
    kept = session.get_one(Order, 1), session.get_one(Line, 1).value
    session.commit()
    session.expire_all()
    assert (order.total, line.value) == (30, 10)
    elsewhere(sa.update(Order).values(total=99), sa.update(Line).values(value=77))
    assert ask(session) is order
    assert (order.total, line.value) == (99, 77)
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    assert kept


@pytest.mark.read_committed
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_pending_changes_are_refused(session: Session, ask: Ask) -> None:
    order = session.get_one(Order, 1)
    order.total = 31
    with pytest.raises(UnsavedChanges):
        ask(session)
    assert order.total == 31
    assert not session.held_locks
