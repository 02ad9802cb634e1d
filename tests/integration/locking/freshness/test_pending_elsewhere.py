"""Pending changes that a lock has nothing to do with: neither lost, nor written before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import recorded
from tests.support.models import (
    Account,
    Clause,
    Contract,
    Customer,
    Entry,
    Invoice,
    Lease,
    Line,
    Order,
    Voucher,
)

pytestmark = pytest.mark.read_committed

Session = LockingSession
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Run = Callable[..., list[Any]]


def test_details_of_other_documents_of_these_kinds_are_left_alone(session: Session) -> None:
    with session.no_autoflush:
        session.get_one(Entry, 1).value = 1
        session.get_one(Clause, 1).value = 1
        session.get_one(Account, 1).total = 1
    for entity, ident in ((Voucher, (2024, 2)), (Contract, 2), (Account, 2)):
        session.get_one_entity(entity, ident, ForUpdate)
    assert session.get_one(Entry, 1).value == 1
    assert session.get_one(Clause, 1).value == 1
    assert session.get_one(Account, 1).total == 1


def test_what_the_header_loads_along_keeps_its_pending_edits(session: Session) -> None:
    for lock in (ForUpdate, SharedRead):
        customer, seller = session.get_one(Customer, 1), session.get_one(Customer, 2)
        with session.no_autoflush:
            customer.name, seller.name = "Anna", "Benno"
            invoice = session.get_one_entity(Invoice, 1, lock)
            assert (invoice.customer.name, invoice.seller.name) == ("Anna", "Benno")
            assert invoice.customer is customer
        session.rollback()


def test_what_a_loaded_header_loads_along_keeps_its_pending_edits(session: Session) -> None:
    invoice = session.get_one(Invoice, 1)
    with session.no_autoflush:
        invoice.customer.name, invoice.seller.name = "Anna", "Benno"
        rows = session.scalars(session.entity_set(Invoice, ForUpdate).order_by(Invoice.id)).all()
        assert [row.customer.name for row in rows] == ["Anna", "Anna"]
        assert [row.seller.name for row in rows] == ["Benno", "Benno"]


def test_edits_in_a_document_held_already_survive_the_next_lock(
    session: Session, elsewhere: Run
) -> None:
    second = session.get_one_entity(Order, 2, ForUpdate)
    second.total, second.lines[0].value = 6, 6
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()
    assert elsewhere(sa.select(Order.total).order_by(Order.id)) == [(31,), (6,)]
    assert elsewhere(sa.select(Line.value).where(Line.order_id == 2)) == [(6,)]


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_nothing_is_flushed_before_a_lock(
    engine: sa.Engine, session: Session, lock: LockOptions
) -> None:
    session.add(Customer(id=9, name="new"))
    with recorded(engine) as statements:
        session.get_one_entity(Order, 1, lock)
        session.scalars(session.entity_set(Order, lock)).all()
    assert not [text for text in statements if "lk_customer" in text]
    assert len(session.new) == 1


def test_nothing_is_flushed_before_the_lock_of_a_row_in_two_tables(
    engine: sa.Engine, session: Session
) -> None:
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    with recorded(engine) as statements:
        session.get_one_entity(Lease, 1, ForUpdate)
    assert not [text for text in statements if "UPDATE lk_order" in text]


def test_nothing_is_flushed_before_a_set_of_rows_in_two_tables(
    engine: sa.Engine, session: Session
) -> None:
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    with recorded(engine) as statements:
        session.scalars(session.entity_set(Lease, ForUpdate)).all()
    assert not [text for text in statements if "UPDATE lk_order" in text]
