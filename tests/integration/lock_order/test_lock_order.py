"""LockingSession(lock_order=[...]): documents of several classes are locked in the declared order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import aliased, sessionmaker

from sa_doclock import (
    LockingSession,
    LockMisuse,
    LockOptions,
    LockOrderViolation,
    with_lock,
)
from tests.integration.locking.steps import finds_held, locks_rows, recorded
from tests.support.models import (
    Account,
    ColdStore,
    Contract,
    Depot,
    Fault,
    Lease,
    Order,
    Ticket,
    Voucher,
)

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession

#: The order: tickets, then orders, then contracts.
ORDER = (Ticket, Order, Contract)


@pytest.fixture
def session_factory(engine: sa.Engine) -> Callable[[], LockingSession]:
    return lambda: LockingSession(engine, lock_order=ORDER)


def in_block(session: Session) -> None:
    with session.locked(Ticket, 1):
        pytest.fail("the block was entered")


#: Every way to lock a ticket.
WAYS: dict[str, Callable[[Session], Any]] = {
    "get_entity": lambda s: s.get_entity(Ticket, 1, ForUpdate),
    "get_entity SharedRead": lambda s: s.get_entity(Ticket, 1, SharedRead),
    "get_entity NoWait": lambda s: s.get_entity(Ticket, 1, ForUpdate | LockOptions.NoWait),
    "get_entity, lock_timeout": lambda s: s.get_entity(Ticket, 1, ForUpdate, lock_timeout=1),
    "get_one_entity": lambda s: s.get_one_entity(Ticket, 1, ForUpdate),
    "get_entities": lambda s: s.get_entities(Ticket, [1, 2], ForUpdate),
    "get_document": lambda s: s.get_document(Ticket, 1, ForUpdate),
    "get_documents": lambda s: s.get_documents(Ticket, [1], ForUpdate),
    "entity_set": lambda s: s.scalars(s.entity_set(Ticket, ForUpdate)).all(),
    "with_lock": lambda s: s.execute(with_lock(sa.select(Ticket), SharedRead)).all(),
    "locked": in_block,
    "with_for_update": lambda s: s.scalars(sa.select(Ticket).with_for_update()).all(),
    "a subclass": lambda s: s.get_entity(Fault, 1, ForUpdate),
    "a set of a subclass": lambda s: s.scalars(s.entity_set(Fault, ForUpdate)).all(),
    "one that there is not": lambda s: s.get_entity(Ticket, 99, ForUpdate),
}


@pytest.mark.read_committed
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_against_the_order_is_refused_before_anything_is_sent(
    engine: sa.Engine, session: Session, way: Callable[[Session], Any]
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    with recorded(engine) as statements, pytest.raises(LockOrderViolation) as caught:
        way(session)
    assert statements == []
    assert isinstance(caught.value, LockMisuse)
    assert not caught.value.retryable
    assert caught.value.entity in (Ticket, Fault)
    assert "lock_order has Ticket before Order, but this transaction has locked Order first" in str(
        caught.value
    )
    assert list(session.held_locks) == [(Order, (1,))]
    order.total = 31  # the transaction continues
    session.get_one_entity(Contract, 1, ForUpdate)
    session.save_changes()
    assert session.get_one(Order, 1).total == 31


@pytest.mark.read_committed
@pytest.mark.parametrize("way", [way for name, way in WAYS.items() if name != "locked"])
def test_in_the_order_it_is_granted(session: Session, way: Callable[[Session], Any]) -> None:
    session.get_one_entity(Voucher, (2024, 1), ForUpdate)  # SQLite's file lock comes first
    way(session)
    session.get_one_entity(Order, 1, ForUpdate)
    session.get_entities(Order, [2, 1], ForUpdate)
    session.get_one_entity(Contract, 1, ForUpdate)


@pytest.mark.read_committed
def test_the_error_names_the_document_that_was_asked_for(session: Session) -> None:
    session.get_one_entity(Contract, 1, ForUpdate)
    with pytest.raises(LockOrderViolation, match=r"^Order 1 FOR UPDATE on ") as caught:
        session.get_entity(Order, 1, ForUpdate)
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    assert caught.value.lock is ForUpdate
    with pytest.raises(LockOrderViolation, match=r"^Order rows SHARED READ on "):
        session.scalars(session.entity_set(Order, SharedRead))


@pytest.mark.read_committed
def test_a_subclass_is_held_as_its_root(session: Session) -> None:
    session.get_one_entity(Lease, 1, ForUpdate)
    with pytest.raises(LockOrderViolation, match="has locked Contract first"):
        session.get_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_a_row_of_a_set_is_held_as_any_other(session: Session) -> None:
    session.scalars(session.entity_set(Contract, ForUpdate).where(Contract.id == 1)).all()
    with pytest.raises(LockOrderViolation, match="has locked Contract first"):
        session.get_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_a_set_without_rows_holds_nothing(session: Session) -> None:
    assert (
        session.scalars(session.entity_set(Contract, ForUpdate).where(Contract.id > 9)).all() == []
    )
    session.get_one_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_documents_of_one_class_have_no_order_among_them(session: Session) -> None:
    session.get_one_entity(Order, 2, ForUpdate)
    session.get_one_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_a_class_that_is_not_named_has_any_place(session: Session) -> None:
    session.get_one_entity(Voucher, (2024, 1), ForUpdate)
    session.get_one_entity(Ticket, 1, ForUpdate)
    session.get_one_entity(Account, 1, ForUpdate)
    session.get_one_entity(Contract, 1, ForUpdate)
    session.get_one_entity(Voucher, (2024, 2), ForUpdate)
    with pytest.raises(LockOrderViolation):  # locks in between make no difference
        session.get_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_what_is_held_already_may_be_asked_for_again(engine: sa.Engine, session: Session) -> None:
    ticket = session.get_one_entity(Ticket, 1, ForUpdate)
    order = session.get_one_entity(Order, 1, ForUpdate)
    with recorded(engine) as statements:
        assert session.get_entity(Ticket, 1, ForUpdate) is ticket
        assert session.get_entity(Ticket, 1, SharedRead) is ticket
        assert session.get_entities(Ticket, [1], ForUpdate) == [ticket]
    assert statements == []
    with recorded(engine) as statements:
        assert session.get_entity(Fault, 1, ForUpdate) is ticket
    assert not any(map(locks_rows, statements))
    with pytest.raises(LockOrderViolation):
        session.get_entities(Ticket, [1, 2], ForUpdate)
    assert order in session


@pytest.mark.read_committed
def test_a_read_without_a_lock_has_any_place(session: Session) -> None:
    session.get_one_entity(Contract, 1, ForUpdate)
    for lock in (LockOptions.None_, LockOptions.NoLock):
        assert session.get_entity(Ticket, 1, lock) is not None
        assert len(session.get_entities(Ticket, [1, 2], lock)) == 2
        assert session.get_document(Order, 1, lock) is not None
        assert len(session.scalars(session.entity_set(Order, lock)).all()) == 2


@pytest.mark.read_committed
def test_snapshots_have_any_place(session: Session) -> None:
    for entity in (Contract, Order, Ticket):
        assert session.get_entity(entity, 1, LockOptions.SnapshotRead) is not None


@pytest.mark.read_committed
def test_without_an_order_there_is_none(engine: sa.Engine) -> None:
    for session in (LockingSession(engine), LockingSession(engine, lock_order=[])):
        with session:
            for entity in (Contract, Order, Ticket):
                assert session.get_entity(entity, 1, ForUpdate) is not None


@pytest.mark.read_committed
def test_only_those_who_follow_it_are_held_to_it(engine: sa.Engine, session: Session) -> None:
    with LockingSession(engine, lock_order=[Contract, Order]) as other:
        other.get_one_entity(Contract, 1, ForUpdate)
        other.get_one_entity(Order, 1, ForUpdate)
        assert finds_held(Order, 1)(session)


@pytest.mark.read_committed
def test_of_what_one_statement_has_locked_the_last_in_the_order_counts(session: Session) -> None:
    both = sa.select(Contract, Ticket).join(Ticket, Ticket.id == Contract.id)
    session.execute(both.with_for_update()).all()
    with pytest.raises(LockOrderViolation, match="before Contract"):
        session.get_entity(Order, 1, ForUpdate)


# --------------------------------------------------------------------------------------------------
# A meaningless lock_order is rejected when the session is created.

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "not mapped": ([Order, int], TypeError, "mapped class.*int"),
    "a string": ("Order", TypeError, "mapped class"),
    "names": (["Order"], TypeError, "mapped class.*'Order'"),
    "None": (None, TypeError, "not iterable"),
    "one class": (Order, TypeError, "not iterable"),
    "None in it": ([None], TypeError, "mapped class"),
    "an object": ([Order(id=1)], TypeError, "mapped class"),
    "a table": ([Order.__table__], TypeError, "mapped class"),
    "an alias": ([aliased(Order)], TypeError, "mapped class"),
    "a list in it": ([[Order]], TypeError, "unhashable"),
    "twice": ([Order, Ticket, Order], ValueError, "Order twice"),
    "a subclass beside its root": ([Contract, Lease], ValueError, "Contract twice"),
    "a root beside its subclass": ([Fault, Order, Ticket], ValueError, "Ticket twice"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_it_is_refused(case: tuple[Any, type[Exception], str]) -> None:
    order, error, text = case
    with pytest.raises(error, match=text):
        LockingSession(lock_order=order)
    with pytest.raises(error, match=text):
        sessionmaker(sa.create_engine("sqlite://"), class_=LockingSession, lock_order=order)()


@pytest.mark.parametrize(
    "order", [[], (), [Order], (Order, Lease), iter([Order, Ticket]), [Depot, ColdStore]]
)
def test_it_is_taken(order: Any) -> None:
    LockingSession(lock_order=order).close()
