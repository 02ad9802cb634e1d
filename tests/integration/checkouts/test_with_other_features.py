"""Check-outs in sessions that have other features too: a lock that is refused leaves nothing behind."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    CheckedOut,
    CheckoutLost,
    DocumentGate,
    LockingSession,
    LockOptions,
    run_transaction,
)
from tests.integration.checkouts.models import CHECKOUTS, Order
from tests.integration.gate.queueing import wait_until_queued

pytestmark = pytest.mark.not_databases("sqlite-journal")
ForUpdate = LockOptions.ForUpdate
GATE = DocumentGate()
OPTIONS: dict[str, dict[str, Any]] = {
    "batch": {"priority": "batch"},
    "gate": {"gate": GATE},
    "gate and batch": {"gate": GATE, "priority": "batch"},
    "limits": {"hold_limit": 30, "warn_held_after": 30, "lock_timeout": 5, "diagnose": True},
    "order": {"lock_order": (Order,), "guard_tracing": True},
}


@pytest.mark.databases("sqlite", "postgresql", "mysql")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_refused_lock_leaves_nothing_behind(
    factory: sessionmaker[LockingSession], options: dict[str, Any]
) -> None:
    with factory() as session:
        mine = session.check_out(Order, 1, "ann")
        session.commit()
    make = sessionmaker(factory.kw["bind"], class_=LockingSession, checkouts=CHECKOUTS, **options)
    with make() as refused, make() as other:
        with pytest.raises(CheckedOut):
            refused.get_entity(Order, 1, ForUpdate)
        assert not refused.in_transaction()
        with other.locked(Order, 1, checkout=mine) as order:
            order.total += 1
        assert other.check_out(Order, 2, "bob").epoch == 1
        other.rollback()
        with refused.locked(Order, 2) as order:
            order.total += 1
    with factory() as session:
        session.check_in(mine)
        session.commit()


@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_a_lent_connection(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        with LockingSession(connection, checkouts=CHECKOUTS) as session:
            assert session.check_out(Order, 1, "ann").epoch == 1
            session.commit()
        with LockingSession(connection, checkouts=CHECKOUTS) as session:
            with pytest.raises(CheckedOut):
                session.scalars(sa.select(Order).with_for_update()).all()
            assert not session.held_locks


@pytest.mark.databases("sqlite")
def test_a_transaction_that_is_refused_is_not_repeated(
    factory: sessionmaker[LockingSession],
) -> None:
    with factory() as session:
        session.check_out(Order, 1, "ann")
        session.commit()
    runs = []

    def work(session: LockingSession) -> None:
        runs.append(session)
        session.get_entity(Order, 1, ForUpdate)

    with pytest.raises(CheckedOut):
        run_transaction(factory, work)
    assert len(runs) == 1


@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_a_combined_commit_is_refused_and_may_check_out(
    factory: sessionmaker[LockingSession],
) -> None:
    gate = DocumentGate(combine=20)

    def check_out(session: LockingSession, order: Order) -> int:
        return session.check_out(Order, order.id, "ann").epoch

    def check_out_and_fail(session: LockingSession, order: Order) -> None:
        session.check_out(Order, order.id, "bob")
        raise OSError("no printer")

    with pytest.raises(OSError, match="no printer"):
        gate.run(factory, Order, 1, check_out_and_fail)
    assert gate.run(factory, Order, 1, check_out) == 1  # the failed one is undone
    for _ in range(2):
        with pytest.raises(CheckedOut) as caught:
            gate.run(factory, Order, 1, lambda *_: None)
        assert caught.value.checkout is not None
        assert caught.value.checkout.owner == "ann"
    assert gate.run(factory, Order, 2, lambda _, order: order.id) == 2


@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_each_call_of_a_combined_commit_has_a_check_out_of_its_own(
    factory: sessionmaker[LockingSession],
) -> None:
    gate, calls = DocumentGate(), list[Future[Any]]()

    def check_out(session: LockingSession, order: Order) -> int:
        return session.check_out(Order, order.id, "ann").epoch

    def add(_session: LockingSession, order: Order) -> int:
        order.total += 1
        return order.total

    with ThreadPoolExecutor(5) as threads, factory() as holder:
        holder.get_entity(Order, 1, ForUpdate)
        run: Any = gate.run
        for function, given in (
            *((add, {}), (check_out, {}), (add, {})),
            *((add, {"checkout": 1}), (add, {"checkout": 7})),
        ):
            calls.append(threads.submit(run, factory, Order, 1, function, **given))
            wait_until_queued(gate, number=len(calls))
        holder.rollback()
        errors = [call.exception(30) for call in calls]
    expected = type(None), type(None), CheckedOut, type(None), CheckoutLost
    assert tuple(map(type, errors)) == expected
    with factory() as session:
        before = session.get_one(Order, 1).total
    with pytest.raises(CheckedOut):
        gate.run(factory, Order, 1, add)
    assert gate.run(factory, Order, 1, add, checkout=1) == before + 1


@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_what_is_checked_out_is_not_created_again(
    session: LockingSession, other: LockingSession
) -> None:
    session.check_out(Order, 1, "ann")
    session.commit()
    with pytest.raises(CheckedOut):
        other.get_or_create_entity(Order, 1)
    created, is_new = other.get_or_create_entity(Order, 9)
    assert is_new
    mine = other.check_out(Order, created.id, "bob")
    other.commit()
    with session.locked(Order, 9, checkout=mine) as order:
        order.total += 1
