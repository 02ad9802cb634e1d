"""Rows that get_or_create_entity() inserts, and what the session holds afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Account, Contract, Invoice, Lease, Line, Order, Voucher

pytestmark = pytest.mark.quick

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait


def with_lines(*values: int) -> Order:
    lines = [Line(id=100 + value, name="new", value=value) for value in values]
    return Order(total=sum(values), lines=lines)


def statements_of(session: LockingSession, call: Callable[[], Any]) -> list[str]:
    sent: list[str] = []
    connection = session.connection()
    dict(session.held_locks)  # asks once: who has the connection may have ended the transaction

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    sa.event.listen(connection, "before_cursor_execute", note)
    try:
        call()
    finally:
        sa.event.remove(connection, "before_cursor_execute", note)
    return sent


def test_an_object_with_its_parts(session: LockingSession) -> None:
    order, created = session.get_or_create_entity(Order, 7, defaults=lambda: with_lines(4, 5))
    assert created
    assert (order.id, [line.value for line in order.lines]) == (7, [4, 5])
    again = session.get_or_create_entity(Order, 7, defaults=lambda: with_lines(9))
    assert again == (order, False)
    session.save_changes()
    assert session.get_one(Order, 7).total == 9


def test_the_next_ask_sends_nothing_and_another_has_to_wait(
    session: LockingSession, other: LockingSession
) -> None:
    created = session.get_or_create_entity(Order, 7, defaults={"total": 1})[0]
    assert dict(session.held_locks) == {(Order, (7,)): ForUpdate}
    assert statements_of(session, lambda: session.get_entity(Order, 7, ForUpdate)) == []
    assert statements_of(session, lambda: session.get_or_create_entity(Order, 7)) == []
    session.save_changes()
    assert session.get_or_create_entity(Order, 7) == (created, False)
    assert created.total == 1
    with pytest.raises(LockNotAvailable):
        other.get_entity(Order, 7, ForUpdate | NoWait)


def test_each_kind_of_mapping(session: LockingSession) -> None:
    with session.begin():
        lease, _ = session.get_or_create_entity(Lease, 7, defaults={"total": 1, "rent": 2})
        voucher, _ = session.get_or_create_entity(
            Voucher, {"year": 2030, "number": 1}, defaults={"total": 3}
        )
        account, _ = session.get_or_create_entity(Account, 7, defaults={"total": 4})
        contract, _ = session.get_or_create_entity(
            Contract, 8, defaults=lambda: Lease(id=8, total=5, rent=6)
        )
        assert (lease.rent, voucher.year, account.version, type(contract)) == (2, 2030, 1, Lease)
        account.total += 1
    assert session.get_one(Account, 7).version == 2


def test_another_constraint_refuses_it_and_the_transaction_goes_on(
    session: LockingSession,
) -> None:
    calls: list[int] = []

    def without_seller() -> Invoice:
        calls.append(1)
        return Invoice(total=0, customer_id=1)

    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        with pytest.raises(IntegrityError):
            session.get_or_create_entity(Invoice, 7, defaults=without_seller)
        assert len(calls) <= 2
        assert session.get_or_create_entity(Order, 7, defaults={"total": 1})[1]
    assert session.get_one(Order, 1).total == 31


def test_pending_changes_are_flushed_before_and_stay(session: LockingSession) -> None:
    with session.begin():
        session.add(Account(id=7, total=1))
        with pytest.raises(ZeroDivisionError):
            session.get_or_create_entity(Order, 7, defaults=lambda: with_lines(1 // 0))
        assert session.get_or_create_entity(Order, 8, defaults={"total": 2})[1]
    assert session.get_one(Account, 7).total == 1
    assert session.get(Order, 7) is None


def test_a_row_that_is_locked_only_is_not_inserted(
    session: LockingSession, other: LockingSession
) -> None:
    row, created = session.get_or_create_entity(
        Order, "1", ForUpdate | LockOptions.NoKey, defaults=pytest.fail
    )
    assert (row.total, created) == (30, False)
    with pytest.raises(LockNotAvailable):
        other.get_or_create_entity(Order, 1, ForUpdate | NoWait)


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"lock": LockOptions.SharedRead}, ValueError, "needs ForUpdate"),
        ({"lock": LockOptions.None_}, ValueError, "needs ForUpdate"),
        ({"lock": ForUpdate | LockOptions.SkipLocked}, ValueError, "needs ForUpdate"),
        ({"defaults": 5}, TypeError, "a function without arguments, or a mapping"),
        ({"defaults": lambda: None}, TypeError, "must return a Order, not None"),
        ({"defaults": {"id": 8, "total": 0}}, ValueError, "primary key 8, but the call asks for 7"),
        ({"defaults": {"no_such": 0}}, TypeError, "no_such"),
    ],
)
def test_what_it_refuses(
    session: LockingSession, how: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        session.get_or_create_entity(Order, 7, **how)
    assert not session.in_transaction()


def test_another_object_that_cannot_be_flushed_is_the_error_of_the_call(
    session: LockingSession,
) -> None:
    session.add(Line(id=1, order_id=1, name="there already", value=1))
    with pytest.raises(IntegrityError):
        session.get_or_create_entity(Order, 7, defaults={"total": 1})
