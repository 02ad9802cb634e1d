"""The order in which get_entities takes its locks: a waiter holds no later document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held, locks, roll_back, save
from tests.support.actors import Actor
from tests.support.models import Base, Contract, Lease, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = [
    pytest.mark.each_value,
    pytest.mark.not_databases("sqlite"),
]  # the lock comes before any row is read

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


Session = Actor[LockingSession]


def locks_all(
    entity: type[Any], keys: Sequence[Any], lock: LockOptions = ForUpdate, **how: Any
) -> Callable[[LockingSession], list[Any]]:
    """Make the step that locks these documents, and returns them."""

    def step(session: LockingSession) -> list[Any]:
        return session.get_entities(entity, keys, lock, **how)

    return step


each_kind = pytest.mark.parametrize(
    ("entity", "first", "second"),
    [(Order, 3, 20), (Contract, 3, 20), (Lease, 3, 20), (Voucher, (2025, 3), (2025, 20))],
)


@pytest.mark.parametrize("lock", [ForUpdate])
@each_kind
def test_who_waits_for_the_first_does_not_hold_the_second(
    alice: Session,
    bob: Session,
    carol: Session,
    twenty: range,
    entity: type[Any],
    first: Any,
    second: Any,
    lock: LockOptions,
) -> None:
    assert twenty
    alice.does(locks(entity, first))
    queued = bob.starts(locks_all(entity, [second, first], lock))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert not carol.does(finds_held(entity, second))
    alice.does(roll_back)
    assert len(queued.result()) == 2
    assert carol.does(finds_held(entity, first)) is carol.does(finds_held(entity, second)) is True


@pytest.mark.not_databases("mssql")  # there SharedRead is a snapshot that does not wait
@each_kind
def test_nor_does_a_reader(
    alice: Session,
    bob: Session,
    carol: Session,
    twenty: range,
    entity: type[Any],
    first: Any,
    second: Any,
) -> None:
    test_who_waits_for_the_first_does_not_hold_the_second(
        alice, bob, carol, twenty, entity, first, second, SharedRead
    )


def test_who_waits_for_the_second_holds_the_first(
    alice: Session, bob: Session, carol: Session
) -> None:
    alice.does(locks(Order, 2))
    queued = bob.starts(locks_all(Order, [2, 1]))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert carol.does(finds_held(Order, 1))
    alice.does(roll_back)
    assert [order.id for order in queued.result()] == [1, 2]


def test_one_by_one_the_second_is_held_while_the_first_is_waited_for(
    alice: Session, bob: Session, carol: Session
) -> None:
    def one_by_one(session: LockingSession) -> list[Order]:
        return [session.get_one_entity(Order, ident, ForUpdate) for ident in (2, 1)]

    alice.does(locks(Order, 1))
    queued = bob.starts(one_by_one)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert carol.does(finds_held(Order, 2))
    alice.does(roll_back)
    queued.result()


def test_what_was_waited_for_is_fresh(alice: Session, bob: Session) -> None:
    known = bob.does(lambda session: session.get_entities(Order, [1, 2]))
    bob.does(lambda session: session.commit())

    def raise_total(session: LockingSession) -> None:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.flush()

    alice.does(raise_total)
    queued = bob.starts(locks_all(Order, [2, 1]))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == known
    assert [order.total for order in queued.result()] == [31, 5]


@pytest.mark.parametrize("count", [1, 2, 10, 19])
@pytest.mark.parametrize("entity", [Order, Contract, Lease, Voucher])
def test_those_not_asked_for_are_neither_waited_for_nor_locked(
    session: LockingSession,
    other: LockingSession,
    twenty: range,
    entity: type[Any],
    count: int,
) -> None:
    # Whatever share of the table's rows is requested, and whatever the server's plan.
    def key(number: int) -> Any:
        return (2025 if number > 2 else 2024, number) if entity is Voucher else number

    wanted = [number for number in twenty if number != 5]
    wanted = wanted[-count:] if entity is not Lease else [n for n in wanted if n != 2][-count:]
    other.get_one_entity(entity, key(5), ForUpdate)
    found = session.get_entities(entity, map(key, wanted), ForUpdate | LockOptions.NoWait)
    assert len(found) == len(wanted)
    other.rollback()
    assert not finds_held(entity, key(5))(other)
    assert finds_held(entity, key(20))(other)


@pytest.mark.read_committed
def test_missing_ones_lock_nothing(
    session: LockingSession, other: LockingSession, twenty: range
) -> None:
    for missing in (99, 0):
        session.get_entities(Order, [2, missing, 1], ForUpdate)
        other.add(Order(id=missing, total=0))
        other.commit()  # nothing blocks it
        other.delete(other.get_one_entity(Order, missing, ForUpdate))
        other.commit()
        session.rollback()
    assert twenty


# --------------------------------------------------------------------------------------------------
# Other transactions delete or replace documents while get_entities() waits for them.


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
    # A row inserted after the statement began is found locked, or not found.
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
