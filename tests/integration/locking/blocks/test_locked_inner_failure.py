"""An exception leaves an inner ``locked()`` block, and an outer block catches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NoResultFound, PendingRollbackError

from sa_doclock import LockingSession, LockOptions, run_transaction
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.own_logic, pytest.mark.read_committed]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
TOTALS = sa.select(Order.total).order_by(Order.id)
UNTOUCHED = [(30,), (5,)]


class UsersOwnError(Exception):
    """The error raised inside a block."""


def half_done(session: LockingSession, *, flush: bool = True) -> None:
    """Change a document in a block, and leave the block by an exception."""
    with session.locked(Order, 2) as order:
        order.total = 6
        if flush:
            session.flush()
        raise UsersOwnError


def fail_half_done(session: LockingSession, *, flush: bool = True) -> None:
    """Catch that exception outside the block."""
    with pytest.raises(UsersOwnError):
        half_done(session, flush=flush)


def outer_block(session: LockingSession) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        fail_half_done(session)


@pytest.mark.parametrize("flush", [False, True])
def test_nothing_of_the_outer_block_is_saved(
    session: Session, elsewhere: Run, *, flush: bool
) -> None:
    def run() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            fail_half_done(session, flush=flush)

    with pytest.raises(PendingRollbackError, match="UsersOwnError") as caught:
        run()
    assert isinstance(caught.value.__cause__, UsersOwnError)
    assert not session.in_transaction()
    assert elsewhere(TOTALS) == UNTOUCHED


def test_the_next_transaction_is_free(session: Session, elsewhere: Run) -> None:
    with pytest.raises(PendingRollbackError):
        outer_block(session)
    with session.locked(Order, 1) as order:
        order.total = 32
    assert elsewhere(TOTALS) == [(32,), (5,)]


@pytest.mark.parametrize("end", [Session.commit, Session.save_changes])
def test_commit_is_refused_until_rollback(
    session: Session, elsewhere: Run, end: Callable[[Session], None]
) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    fail_half_done(session)
    assert session.get_one(Order, 1).total == 31  # statements are not refused
    for _ in range(2):
        with pytest.raises(PendingRollbackError):
            end(session)
    session.rollback()
    assert elsewhere(TOTALS) == UNTOUCHED
    session.get_one_entity(Order, 1, ForUpdate).total = 32
    end(session)
    assert elsewhere(TOTALS) == [(32,), (5,)]


def test_in_a_callers_transaction(session: Session, elsewhere: Run) -> None:
    with pytest.raises(PendingRollbackError), session.begin():
        outer_block(session)
    assert elsewhere(TOTALS) == UNTOUCHED


def test_in_a_callers_transaction_with_a_savepoint_still_open(
    session: Session, elsewhere: Run
) -> None:
    def run() -> None:
        with session.begin():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            fail_half_done(session)
            session.begin_nested()

    with pytest.raises(PendingRollbackError):
        run()
    assert elsewhere(TOTALS) == UNTOUCHED


def test_a_savepoint_around_the_block_undoes_it(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        with pytest.raises(UsersOwnError), session.begin_nested():
            half_done(session)
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_a_savepoint_further_out_undoes_it(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        with session.begin_nested() as savepoint:
            with session.begin_nested():
                fail_half_done(session)
            savepoint.rollback()
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_a_savepoint_that_is_released_does_not(session: Session, elsewhere: Run) -> None:
    def run() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            with session.begin_nested():
                fail_half_done(session)
            with session.begin_nested() as later:
                later.rollback()

    with pytest.raises(PendingRollbackError):
        run()
    assert elsewhere(TOTALS) == UNTOUCHED


def test_a_savepoint_inside_of_the_block_does_not(session: Session, elsewhere: Run) -> None:
    def change() -> None:
        with session.locked(Order, 2) as second:
            second.total = 6
            with session.begin_nested():
                raise UsersOwnError

    def run() -> None:
        with session.locked(Order, 1), pytest.raises(UsersOwnError):
            change()

    with pytest.raises(PendingRollbackError):
        run()
    assert elsewhere(TOTALS) == UNTOUCHED


@pytest.mark.not_databases("sqlite", "mssql")  # there a snapshot, after which no lock is granted
def test_an_outer_block_that_reads(session: Session, elsewhere: Run) -> None:
    with session.begin(), session.locked(Order, 1, SharedRead):
        fail_half_done(session)
        session.rollback()
    assert elsewhere(TOTALS) == UNTOUCHED
    with pytest.raises(PendingRollbackError), session.begin(), session.locked(Order, 1, SharedRead):
        fail_half_done(session)
    assert elsewhere(TOTALS) == UNTOUCHED


def test_a_document_that_is_not_there_has_changed_nothing(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        with pytest.raises(NoResultFound), session.locked(Order, 99):
            pytest.fail("there is nothing to be in")
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_run_transaction_saves_nothing(session_factory: Any, elsewhere: Run) -> None:
    with pytest.raises(PendingRollbackError):
        run_transaction(session_factory, outer_block)
    assert elsewhere(TOTALS) == UNTOUCHED


def test_a_block_alone_in_a_callers_transaction_is_the_callers(
    session: Session, elsewhere: Run
) -> None:
    with session.begin():
        session.get_one(Customer, 1).name = "kept"
        fail_half_done(session)
    assert elsewhere(sa.select(Customer.name).where(Customer.id == 1)) == [("kept",)]


def test_a_block_whose_transaction_was_rolled_back_leaves_nothing_half_done(
    session: LockingSession,
) -> None:
    session.get_one_entity(Order, 1, ForUpdate)

    def roll_back_within() -> None:
        with session.locked(Order, 1):
            session.rollback()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_back_within()
    session.get_one_entity(Order, 1, ForUpdate).total += 1
    session.commit()
