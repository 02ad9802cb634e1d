"""``with session.locked(Order, 1) as order``: the block that opens the transaction ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, NoResultFound, PendingRollbackError

from sa_doclock import (
    LockingSession,
    LockLost,
    LockNotAvailable,
    LockOptions,
    LockUpgradeRefused,
    UnsavedChanges,
)
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Customer, Line, Order

pytestmark = [pytest.mark.quick, pytest.mark.own_logic, pytest.mark.read_committed]

ForUpdate, SharedRead, NoWait, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.NoWait,
    LockOptions.SnapshotRead,
)
READS = [SharedRead, SnapshotRead]
Session = LockingSession
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)
NAME = sa.select(Customer.name).where(Customer.id == 1)


class UsersOwnError(Exception):
    """The error raised inside a block."""


def test_it_saves_and_releases(session: Session, other: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        assert finds_held()(other)
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(31,)]
    assert not finds_held()(other)


def test_an_exception_comes_out_and_undoes_all(
    session: Session, other: Session, elsewhere: Run
) -> None:
    def fail() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            raise UsersOwnError

    with pytest.raises(UsersOwnError):
        fail()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]
    assert not finds_held()(other)


def test_a_read_is_released(session: Session, other: Session) -> None:
    for lock in READS:
        with session.locked(Order, 1, lock) as order:
            assert list(session.held_locks.values()) == [lock]
            assert order.id == 1
        assert not session.in_transaction()
        with other.locked(Order, 1) as order:
            order.total += 1


def test_the_exception_of_a_read_comes_out(session: Session) -> None:
    for lock in READS:
        with pytest.raises(UsersOwnError), session.locked(Order, 1, lock):
            raise UsersOwnError
        assert not session.in_transaction()


def test_no_row(session: Session) -> None:
    for lock in (ForUpdate, *READS):
        with pytest.raises(NoResultFound), session.locked(Order, 99, lock):
            pytest.fail("there is nothing to be in")
        assert not session.in_transaction()


def test_a_lock_that_another_holds(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable), session.locked(Order, 1, ForUpdate | NoWait):
        pytest.fail("it was not granted")
    assert not session.in_transaction()


def test_a_lock_that_locks_nothing(session: Session) -> None:
    for lock in (LockOptions.None_, LockOptions.NoLock):
        with pytest.raises(ValueError, match="needs a lock"), session.locked(Order, 1, lock):
            pytest.fail("it was not granted")
        assert not session.in_transaction()


def test_a_flush_that_fails_at_the_end(session: Session, other: Session, elsewhere: Run) -> None:
    def fail() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.add(Line(id=1, order_id=1, name="a second line 1", value=0))

    with pytest.raises(IntegrityError):
        fail()
    assert not session.in_transaction()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(30,)]


def test_options_and_timeout_are_handed_on(engine: sa.Engine, session: Session) -> None:
    loaded = sa.orm.selectinload(Order.lines)
    with session.locked(Order, 1, lock_timeout=5, options=[loaded]) as order:
        with recorded(engine) as statements:
            assert len(order.lines) == 2
        assert statements == []


def test_a_block_that_commits_by_itself(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        session.commit()
    assert elsewhere(TOTAL) == [(31,)]
    assert not session.in_transaction()


# --------------------------------------------------------------------------------------------------
# ``with session.locked(Order, 1) as order`` inside an outer transaction, savepoint or block.


def test_no_row_in_a_callers_transaction(session: Session, elsewhere: Run) -> None:
    with session.begin():
        session.get_one(Customer, 1).name = "kept"
        with pytest.raises(NoResultFound), session.locked(Order, 99):
            pytest.fail("there is nothing to be in")
    assert elsewhere(NAME) == [("kept",)]


def test_an_inner_block_leaves_the_transaction_to_the_outer(
    session: Session, other: Session, elsewhere: Run
) -> None:
    with session.locked(Order, 1) as first:
        with session.locked(Order, 2) as second:
            first.total, second.total = 31, 6
        assert session.in_transaction()
        assert finds_held(Order, 2)(other)
        with session.locked(Order, 1) as again:
            assert again is first
    assert elsewhere(sa.select(Order.total).order_by(Order.id)) == [(31,), (6,)]


def test_a_block_after_a_lock_is_an_inner_one(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.locked(Order, 1) as order:
        order.total = 31
    assert finds_held()(other)
    session.rollback()


def test_begin_is_left_alone(session: Session, other: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.locked(Order, 1) as order:
            order.total = 31
        assert finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]


def test_an_exception_in_a_callers_transaction_leaves_it_to_the_caller(
    session: Session, elsewhere: Run
) -> None:
    with session.begin():
        session.get_one(Customer, 1).name = "kept"
        with pytest.raises(UsersOwnError), session.locked(Order, 1):
            raise UsersOwnError
    assert elsewhere(NAME) == [("kept",)]


def test_a_savepoint_is_left_alone(session: Session, other: Session, elsewhere: Run) -> None:
    session.get_one(Customer, 1)
    with session.begin_nested():
        with session.locked(Order, 1) as order:
            order.total = 31
        assert session.in_nested_transaction()
    assert finds_held()(other)
    session.save_changes()
    assert elsewhere(TOTAL) == [(31,)]


def test_an_earlier_read_is_no_callers_transaction(session: Session, elsewhere: Run) -> None:
    session.get_one(Customer, 1).name = "saved along"
    with session.locked(Order, 1) as order:
        order.total = 31
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(31,)]
    assert elsewhere(NAME) == [("saved along",)]


def test_a_failed_lock_keeps_what_was_pending(session: Session) -> None:
    customer = session.get_one(Customer, 1)
    customer.name = "pending"
    with session.no_autoflush:
        session.get_one(Order, 1).total = 31
        with pytest.raises(UnsavedChanges), session.locked(Order, 1):
            pytest.fail("it was not granted")
    assert customer.name == "pending"
    assert session.in_transaction()


@pytest.mark.not_databases("sqlite")  # one lock for the file
def test_an_inner_lock_that_fails_is_reported_to_the_outer_block(
    session: Session, other: Session, elsewhere: Run
) -> None:
    def fail() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            with pytest.raises(LockNotAvailable), session.locked(Order, 2, ForUpdate | NoWait):
                pytest.fail("it was not granted")

    other.get_one_entity(Order, 2, ForUpdate)
    with pytest.raises(PendingRollbackError):
        fail()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]


def test_an_upgrade_in_an_inner_block_is_refused(session: Session) -> None:
    with (
        session.locked(Order, 1, SharedRead) as order,
        pytest.raises(LockUpgradeRefused),
        session.locked(Order, 1),
    ):
        pytest.fail("it was not granted")
    assert order.total == 30


# --------------------------------------------------------------------------------------------------
# A block whose lock ends inside it does not save later changes.

Step = Callable[[Session, Order], object]


def commit_and_flush(session: Session, order: Order) -> None:
    session.commit()
    order.total = 31
    session.flush()


def commit_and_update(session: Session, _: Order) -> None:
    session.commit()
    session.execute(sa.update(Order).where(Order.id == 1).values(total=31))


def commit_and_add(session: Session, order: Order) -> None:
    session.commit()
    order.lines.append(Line(id=90, name="new", value=1))


ENDS: dict[str, Step] = {
    "commit": lambda session, _: session.commit(),
    "save_changes": lambda session, _: session.save_changes(),
    "rollback": lambda session, _: session.rollback(),
    "release_locks": lambda session, _: session.release_locks(),
}
WRITES: dict[str, Step] = {
    "flush": commit_and_flush,
    "statement": commit_and_update,
    "new part": commit_and_add,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_change_after_the_end_is_not_saved(session: Session, elsewhere: Run, end: Step) -> None:
    def change() -> None:
        with session.locked(Order, 1) as order:
            end(session, order)
            order.total = 31

    with pytest.raises(
        LockLost, match=r"^Order 1 FOR UPDATE on \w+: .* inside the locked\(\) block"
    ):
        change()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nor_what_was_written_at_once(session: Session, elsewhere: Run, write: Step) -> None:
    def change() -> None:
        with session.locked(Order, 1) as order:
            write(session, order)

    with pytest.raises(LockLost):
        change()
    assert elsewhere(TOTAL) == [(30,)]
    assert elsewhere(sa.select(Line.id).where(Line.id == 90)) == []


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_nor_does_another_commit_save_it(session: Session, elsewhere: Run, end: Step) -> None:
    def change() -> None:
        with session.locked(Order, 1) as order:
            end(session, order)
            session.merge(order).total = 31
            session.commit()

    with pytest.raises(LockLost, match=r"^Order 1 FOR UPDATE"):
        change()
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_an_end_that_the_session_did_not_see(session: Session, end: str) -> None:
    """The block does not report success: a rollback has undone what was flushed."""

    def change() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            session.execute(sa.text(end))

    with pytest.raises(LockLost, match=r"^Order 1 on \w+: .* inside the locked\(\) block"):
        change()
    assert not session.in_transaction()


def test_a_savepoint_gives_the_lock_up(session: Session, elsewhere: Run) -> None:
    def change() -> None:
        with session.begin_nested() as savepoint, session.locked(Order, 1) as order:
            savepoint.rollback()
            order.total = 31

    with pytest.raises(LockLost, match=r"^Order 1 on \w+: "):
        change()
    session.close()
    assert elsewhere(TOTAL) == [(30,)]


def test_a_savepoint_that_takes_all_changes_with_it(session: Session, elsewhere: Run) -> None:
    with session.begin():
        with session.begin_nested() as savepoint, session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            savepoint.rollback()
        session.get_one_entity(Order, 2, LockOptions.ForUpdate).total = 32
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_block_that_only_reads_after_the_end_is_left_alone(session: Session, end: Step) -> None:
    with session.locked(Order, 1) as order:
        end(session, order)
        assert order.total == 30


def test_a_lock_that_was_taken_again_counts(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        session.commit()
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        order.total = 31
    assert elsewhere(TOTAL) == [(31,)]


def test_an_inner_block_too(session: Session, elsewhere: Run) -> None:
    def change() -> None:
        with session.locked(Order, 2), session.locked(Order, 1) as order:
            session.commit()
            order.total = 31

    with pytest.raises(LockLost):
        change()
    assert elsewhere(TOTAL) == [(30,)]


def test_a_block_that_has_ended_refuses_nothing_any_more(session: Session, elsewhere: Run) -> None:
    def locked(ident: int) -> Iterator[None]:
        with session.locked(Order, ident):
            yield

    first, second = locked(1), locked(2)
    for block in (first, second, first, second):  # the outer one ends first, and commits
        next(block, None)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 31
    session.commit()
    assert elsewhere(TOTAL) == [(31,)]
