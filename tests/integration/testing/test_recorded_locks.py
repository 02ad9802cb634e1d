"""recorded_locks() and assert_locked()."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    run_transaction,
)
from sa_doclock.testing import assert_locked, recorded_locks
from tests.integration.locking.steps import add_ten
from tests.support.databases import Database
from tests.support.models import Fault, Order, Ticket, Voucher

pytestmark = [pytest.mark.own_logic, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoKey, NoWait, SnapshotRead = LockOptions.NoKey, LockOptions.NoWait, LockOptions.SnapshotRead
Session = LockingSession
FIRST = sa.select(Order).where(Order.id == 1)


def test_what_was_locked_in_which_order_and_for_how_long(session: Session) -> None:
    with recorded_locks() as locks:
        session.get_entity(Order, 2, ForUpdate)
        session.get_entity(Order, 1, ForUpdate | NoWait)
        session.get_entity(Order, 1, ForUpdate)  # held already
        first, second = locks
        assert (first.entity, first.ident, first.lock) == (Order, 2, ForUpdate)
        assert (second.entity, second.ident, second.lock) == (Order, 1, ForUpdate | NoWait)
        assert {one.outcome for one in locks} == {"granted"}
        assert [(one.held, one.ended) for one in locks] == [(None, None)] * 2
        session.commit()
    assert [one.ended for one in locks] == ["committed"] * 2
    assert all(one.waited is not None and one.waited > 0 for one in locks)
    assert first.held is not None
    assert second.held is not None
    assert first.held > second.held > 0
    assert str(second) == "Order 1 FOR UPDATE NOWAIT: granted, committed"


def test_nothing_is_recorded_outside(session: Session, other: Session) -> None:
    with recorded_locks() as locks:
        pass
    session.get_entity(Order, 1, ForUpdate)
    session.rollback()
    with recorded_locks() as again:
        other.get_entity(Order, 2, ForUpdate)
        other.rollback()
    assert locks == []
    assert [one.ident for one in again] == [2]


def test_blocks_do_not_disturb_each_other(session: Session) -> None:
    with recorded_locks() as outer:
        with recorded_locks() as inner:
            add_ten(session)
            session.commit()
        session.get_entity(Voucher, (2024, 1), SharedRead)
        session.rollback()
    assert [(one.entity, one.ident) for one in outer] == [(Order, 1), (Voucher, (2024, 1))]
    assert [one.ident for one in inner] == [1]
    assert inner[0].ended == outer[0].ended == "committed"


def test_a_refused_lock_is_recorded(session: Session, other: Session) -> None:
    other.get_entity(Order, 1, ForUpdate)
    with recorded_locks() as locks, pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0)
    (record,) = locks
    assert (record.entity, record.ident, record.lock) == (Order, 1, ForUpdate | NoWait)
    assert (record.outcome, record.held) == ("not_available", None)
    assert record.waited is not None


def test_sessions_made_by_a_function_of_the_program(
    session_factory: Callable[[], Session],
) -> None:
    def change(session: Session) -> None:
        session.get_one_entity(Order, 1, ForUpdate).total += 1

    with recorded_locks() as locks:
        run_transaction(session_factory, change)
    assert [(one.ident, one.ended) for one in locks] == [(1, "committed")]


def test_named_locks_and_sets(session: Session) -> None:
    with recorded_locks() as locks:
        session.lock_key("user:42")
        session.scalars(session.entity_set(Order, ForUpdate).order_by(Order.id)).all()
        session.rollback()
    found = [(one.entity, one.ident, one.ended) for one in locks]
    ended = "rolled back"
    assert found == [(None, "user:42", ended), (Order, 1, ended), (Order, 2, ended)]


@pytest.mark.parametrize(
    "take",
    [
        lambda s: s.scalars(FIRST.with_for_update()).one(),
        lambda s: s.query(Order).filter_by(id=1).with_for_update().one(),
        lambda s: s.get(Order, 1, with_for_update=True),
        lambda s: s.refresh(s.get_one(Order, 1), with_for_update=True),
    ],
    ids=["execute", "Query", "get", "refresh"],
)
def test_with_for_update_is_recorded(session: Session, take: Callable[[Session], Any]) -> None:
    with recorded_locks() as locks, assert_locked(Order, 1):
        take(session)
        session.scalars(FIRST.with_for_update()).one()  # held already
        session.commit()
    (record,) = locks
    assert (record.entity, record.ident, record.lock) == (Order, 1, ForUpdate)
    assert (record.outcome, record.ended) == ("granted", "committed")
    assert record.waited is not None
    assert record.waited > 0


def test_each_kind_of_with_for_update(session: Session) -> None:
    with recorded_locks() as locks:
        session.scalars(FIRST.with_for_update(read=True)).one()
        session.rollback()
        session.scalars(FIRST.with_for_update(key_share=True, nowait=True)).one()
        session.rollback()
    assert [one.lock for one in locks] == [SharedRead, ForUpdate | NoKey | NoWait]


def test_a_refused_with_for_update_is_recorded(session: Session, other: Session) -> None:
    other.get_entity(Order, 1, ForUpdate)
    with recorded_locks() as locks, pytest.raises(LockNotAvailable, match=r"^Order") as caught:
        session.scalars(FIRST.with_for_update(nowait=True)).one()
    (record,) = locks
    assert (record.entity, record.lock) == (Order, ForUpdate | NoWait)
    assert record.outcome == "not_available"
    assert "server's own limit" not in str(caught.value)


def test_a_with_for_update_that_is_not_adopted_is_not_recorded(engine: sa.Engine) -> None:
    with Session(engine, adopt_for_update=False) as session, recorded_locks() as locks:
        session.scalars(FIRST.with_for_update()).one()
        session.rollback()
    assert locks == []


def test_a_listener_that_fails_undoes_a_with_for_update(session: Session) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("of a listener")

    sa.event.listen(session, "lock_acquired", refuse)
    with pytest.raises(KeyError, match="of a listener"):
        session.scalars(FIRST.with_for_update()).one()
    assert not session.in_transaction()
    assert session.held_locks == {}


def test_a_stronger_lock_has_a_record_of_its_own(session: Session) -> None:
    with recorded_locks() as locks, assert_locked(Order, 1):
        session.get_entity(Order, 1, ForUpdate | NoKey)
        session.get_entity(Order, 1, ForUpdate)
        session.commit()
    assert [one.lock for one in locks] == [ForUpdate | NoKey, ForUpdate]
    assert [one.ended for one in locks] == ["committed"] * 2


@pytest.mark.databases("sqlite")
def test_asynchronous_sessions_are_recorded(documents: Database) -> None:
    engine = create_async_engine(documents.url.replace("sqlite:", "sqlite+aiosqlite:"))

    async def change() -> None:
        async with AsyncLockingSession(engine) as session:
            (await session.get_one_entity(Order, 1, ForUpdate)).total += 1
            await session.save_changes()
        await engine.dispose()

    with recorded_locks() as locks, assert_locked(Order, 1):
        asyncio.run(change())
    assert [(one.ident, one.ended) for one in locks] == [(1, "committed")]


def test_what_is_enough(session: Session) -> None:
    for taken, enough in (
        (ForUpdate, [ForUpdate, ForUpdate | NoKey, SharedRead, SnapshotRead]),
        (ForUpdate | NoKey, [ForUpdate | NoKey, SharedRead, SnapshotRead]),
        (SharedRead, [SharedRead, SnapshotRead]),
        (SnapshotRead, [SnapshotRead]),
    ):
        for wanted in (ForUpdate, ForUpdate | NoKey, SharedRead, SnapshotRead):
            found = None
            try:
                with assert_locked(Order, 1, wanted):
                    session.get_entity(Order, 1, taken)
            except AssertionError as error:
                found = error
            session.rollback()
            assert (found is None) == (wanted in enough), (taken, wanted)


def test_subclasses_keys_and_names(session: Session) -> None:
    with assert_locked(Fault, 1), assert_locked(Ticket, "1"), assert_locked(Voucher, (2024, 1)):
        session.get_entity(Ticket, 1, ForUpdate)
        session.get_entity(Voucher, {"year": 2024, "number": 1}, ForUpdate)
    with assert_locked(None, "user:42"):
        session.lock_key("user:42")


def test_it_says_that_nothing_was_locked(session: Session) -> None:
    expected = r"^nobody has locked Order 1 FOR UPDATE; no lock was taken$"
    with pytest.raises(AssertionError, match=expected), assert_locked(Order, 1):
        session.get_entity(Order, 1)


def test_a_refused_lock_is_not_enough(session: Session, other: Session) -> None:
    other.get_entity(Order, 1, ForUpdate)
    expected = "these locks were taken:\n  Order 1 FOR UPDATE NOWAIT: not_available$"
    with (
        pytest.raises(AssertionError, match=expected),
        assert_locked(Order, 1),
        pytest.raises(LockNotAvailable),
    ):
        session.get_entity(Order, 1, ForUpdate | NoWait)


def test_the_text_lists_the_locks(session: Session) -> None:
    def lock_others() -> None:
        session.get_entity(Order, 1, SharedRead)
        session.commit()
        session.get_entity(Order, 2, ForUpdate)

    with pytest.raises(AssertionError) as caught, assert_locked(Order, 1):
        lock_others()
    assert str(caught.value).splitlines() == [
        "nobody has locked Order 1 FOR UPDATE; these locks were taken:",
        "  Order 1 SHARED READ: granted, committed",
        "  Order 2 FOR UPDATE: granted",
    ]


def test_an_error_of_the_block_comes_out_as_it_is() -> None:
    with recorded_locks(), pytest.raises(ZeroDivisionError), assert_locked(Order, 1):
        raise ZeroDivisionError


def test_wrong_arguments(session: Session) -> None:
    for arguments, error in (
        ((str, 1), TypeError),
        ((Order, (1, 2)), ValueError),
        ((Order, 1, LockOptions.None_), ValueError),
        ((Order, 1, "ForUpdate"), TypeError),
    ):
        wrong: Any = assert_locked
        with pytest.raises(error), wrong(*arguments):
            session.get_entity(Order, 1, ForUpdate)


def test_the_listeners_are_gone_afterwards(session: Session) -> None:
    dispatch: Any = session.dispatch
    with recorded_locks():
        assert dispatch.lock_acquired
    assert not dispatch.lock_acquired
    assert not dispatch.lock_failed
    assert not dispatch.locks_released
