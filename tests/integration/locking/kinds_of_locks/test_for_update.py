"""ForUpdate: one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.kinds import KINDS
from tests.integration.locking.steps import (
    FIRST,
    TEN_MORE,
    add_ten,
    finds_held,
    reads,
    roll_back,
    save,
)
from tests.support.actors import Actor
from tests.support.models import Contract, Customer, Invoice, Lease, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Session = Actor[LockingSession]


def test_the_second_waits_and_sees_what_the_first_wrote(alice: Session, bob: Session) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == TEN_MORE


def test_the_second_sees_the_old_state_when_the_first_gives_up(
    alice: Session, bob: Session
) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    assert queued.result() == FIRST


def test_nothing_is_lost_of_what_two_add(
    alice: Session, bob: Session, elsewhere: Callable[..., list[Any]]
) -> None:
    alice.does(add_ten)
    queued = bob.starts(add_ten)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    queued.result()
    bob.does(save)
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(50,)]


def test_every_kind_of_mapping_is_locked(session: LockingSession, other: LockingSession) -> None:
    for kind in KINDS:
        document = session.get_one_entity(kind.entity, kind.ident, LockOptions.ForUpdate)
        assert document.total == 30, kind
        assert finds_held(kind.entity, kind.ident)(other), kind
        session.rollback()


@pytest.mark.not_databases("sqlite")  # it locks the file
def test_another_document_is_not_locked(session: LockingSession, other: LockingSession) -> None:
    for kind in KINDS:
        session.get_one_entity(kind.entity, kind.ident, LockOptions.ForUpdate)
        assert not finds_held(kind.other, kind.other_ident)(other), kind


def test_the_base_of_joined_inheritance_is_the_same_document(
    session: LockingSession, other: LockingSession
) -> None:
    session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    assert finds_held(Contract, 1)(other)


@pytest.mark.not_databases("sqlite")
def test_an_object_that_is_loaded_along_is_not_locked(
    session: LockingSession, other: LockingSession
) -> None:
    invoice = session.get_one_entity(Invoice, 1, LockOptions.ForUpdate)
    assert not finds_held(Customer, invoice.customer_id)(other)


def test_a_row_that_is_not_there_locks_nothing(
    session: LockingSession, other: LockingSession
) -> None:
    assert session.get_entity(Order, 99, LockOptions.ForUpdate) is None
    assert not session.held_locks
    session.rollback()
    assert not finds_held(Order, 1)(other)


@pytest.mark.not_databases("mssql")  # there a plain read waits for writers
def test_a_plain_read_is_not_kept_out(session: LockingSession, other: LockingSession) -> None:
    add_ten(session)
    assert reads(LockOptions.None_)(other) == FIRST
    assert reads(LockOptions.NoLock)(other) == FIRST


@pytest.mark.databases("mssql")
def test_there_a_dirty_read_is_not_kept_out_and_sees_what_is_not_committed(
    session: LockingSession, other: LockingSession
) -> None:
    add_ten(session)
    assert other.get_one_entity(Order, 1, LockOptions.NoLock).total == TEN_MORE[0]
