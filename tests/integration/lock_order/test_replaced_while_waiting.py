"""Documents that others delete, or replace, while get_entities waits for them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held, save
from tests.support.actors import Actor
from tests.support.models import Base, Lease, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.not_databases("sqlite")  # the lock comes before any row is read

ForUpdate = LockOptions.ForUpdate
Session = Actor[LockingSession]


def delete_order(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.execute(sa.delete(Line).where(Line.order_id == 1))
    session.execute(sa.delete(Order).where(Order.id == 1))


def replace_order(session: LockingSession) -> None:
    delete_order(session)
    session.execute(sa.insert(Order).values(id=1, total=77, remark="new"))


def lock_both(session: LockingSession) -> list[Order]:
    return session.get_entities(Order, [2, 1], ForUpdate)


def test_one_that_was_deleted_meanwhile_is_left_out(alice: Session, bob: Session) -> None:
    known = bob.does(lambda session: session.get_one(Order, 1))
    bob.does(lambda session: session.commit())
    alice.does(delete_order)
    queued = bob.starts(lock_both)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert [order.id for order in queued.result()] == [2]
    assert bob.does(lambda session: list(session.held_locks)) == [(Order, (2,))]
    assert bob.does(lambda session: known not in session)


def test_one_that_was_replaced_meanwhile_is_found_and_locked(
    alice: Session, bob: Session, carol: Session
) -> None:
    alice.does(replace_order)
    queued = bob.starts(lock_both)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert sorted(order.total for order in queued.result()) == [5, 77]
    assert len(bob.does(lambda session: dict(session.held_locks))) == 2
    assert carol.does(finds_held(Order, 1))


def test_they_come_in_order_all_the_same(alice: Session, bob: Session) -> None:
    alice.does(replace_order)
    queued = bob.starts(lock_both)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert [order.id for order in queued.result()] == [1, 2]


def test_of_two_tables_too(alice: Session, bob: Session, carol: Session) -> None:
    def replace(session: LockingSession) -> None:
        session.get_one_entity(Lease, 3, ForUpdate)
        contract, lease = (Base.metadata.tables[name] for name in ("lk_contract", "lk_lease"))
        session.execute(lease.delete().where(lease.c.id == 3))
        session.execute(contract.delete().where(contract.c.id == 3))
        session.execute(contract.insert().values(id=3, kind="lease", total=77))
        session.execute(lease.insert().values(id=3, rent=8))

    def lock_leases(session: LockingSession) -> list[tuple[int, int]]:
        return [(one.total, one.rent) for one in session.get_entities(Lease, [1, 3], ForUpdate)]

    def add(session: LockingSession) -> None:
        session.add(Lease(id=3, total=3, rent=7))
        session.commit()

    carol.does(add)
    alice.does(replace)
    queued = bob.starts(lock_leases)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == [(30, 100), (77, 8)]
    assert carol.does(finds_held(Lease, 3))


def test_one_that_was_added_while_another_was_waited_for(alice: Session, bob: Session) -> None:
    # A row that was not there when the statement began: found or not, never found unlocked.
    def add(session: LockingSession) -> None:
        session.get_one_entity(Voucher, (2024, 1), ForUpdate)
        session.add(Voucher(year=2024, number=3, total=9))
        session.flush()

    def lock_vouchers(session: LockingSession) -> list[int]:
        keys = [(2024, number) for number in (3, 2, 1)]
        return [one.number for one in session.get_entities(Voucher, keys, ForUpdate)]

    alice.does(add)
    queued = bob.starts(lock_vouchers)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == [1, 2, 3]
    assert len(bob.does(lambda session: dict(session.held_locks))) == 3
