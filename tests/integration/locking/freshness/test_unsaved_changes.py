"""Pending changes: refused on the document to lock, left alone on other objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, registry

from sa_doclock import LockingSession, LockNotSupported, LockOptions, UnsavedChanges
from tests.integration.locking.steps import recorded
from tests.support.databases import Database
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

pytestmark = [pytest.mark.quick, pytest.mark.own_logic]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


Session = LockingSession
Run = Callable[..., list[Any]]


def header_dirty(session: Session) -> None:
    session.get_one(Order, 1).total = 31


def header_deleted(session: Session) -> None:
    session.delete(session.get_one(Order, 1))


def header_new(session: Session) -> None:
    session.add(Order(id=1, total=0))


def line_new_in_collection(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.append(Line(id=9, name="x", value=1))


def line_new_by_backref(session: Session) -> None:
    session.add(Line(id=9, order=session.get_one(Order, 1), name="x", value=1))


def line_new_by_foreign_key(session: Session) -> None:
    session.add(Line(id=9, order_id=1, name="x", value=1))


def line_dirty(session: Session) -> None:
    session.get_one(Line, 1).value = 11


def line_deleted(session: Session) -> None:
    session.delete(session.get_one(Line, 1))


def line_removed_from_collection(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.remove(order.lines[0])


def line_moved_away_by_foreign_key(session: Session) -> None:
    session.get_one(Line, 1).order_id = 2


def line_moved_away_by_backref(session: Session) -> None:
    session.get_one(Line, 1).order = session.get_one(Order, 2)


def line_moved_here_by_foreign_key(session: Session) -> None:
    session.get_one(Line, 3).order_id = 1


def line_moved_here_by_collection(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.lines.append(session.get_one(Line, 3))


EDITS = [
    header_dirty,
    header_deleted,
    header_new,
    line_new_in_collection,
    line_new_by_backref,
    line_new_by_foreign_key,
    line_dirty,
    line_deleted,
    line_removed_from_collection,
    line_moved_away_by_foreign_key,
    line_moved_away_by_backref,
    line_moved_here_by_foreign_key,
    line_moved_here_by_collection,
]


def make(edit: Callable[[Session], None], session: Session) -> None:
    """Leave the change pending, whatever the edit reads."""
    with session.no_autoflush:
        edit(session)


@pytest.mark.read_committed
def test_pending_changes_of_the_document_are_refused(
    engine: sa.Engine, session_factory: Callable[[], Session]
) -> None:
    for edit in EDITS:
        with session_factory() as session:
            make(edit, session)
            with (
                recorded(engine) as statements,
                pytest.raises(UnsavedChanges, match="Order 1 FOR UPDATE"),
            ):
                session.get_entity(Order, 1, ForUpdate)
            assert statements == [], edit
            assert session.new or session.dirty or session.deleted, edit  # not lost
            assert not session.held_locks, edit


@pytest.mark.read_committed
def test_a_lock_elsewhere_forgets_no_pending_changes(
    session_factory: Callable[[], Session], elsewhere: Run
) -> None:
    elsewhere(sa.insert(Order).values(id=7, total=0, remark=""))
    for edit in EDITS:
        with session_factory() as session:
            make(edit, session)
            before = [*session.new, *session.dirty, *session.deleted]
            session.get_one_entity(Order, 7, ForUpdate)
            assert [*session.new, *session.dirty, *session.deleted] == before, edit
            with pytest.raises(UnsavedChanges):
                session.get_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_a_set_that_returns_the_document_is_refused(
    session_factory: Callable[[], Session],
) -> None:
    for edit in EDITS:
        with session_factory() as session:
            make(edit, session)
            with pytest.raises(UnsavedChanges, match="Order rows FOR UPDATE"):
                session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 1))


@pytest.mark.read_committed
def test_a_change_of_a_listener_in_an_empty_session_is_refused(session: Session) -> None:
    @sa.event.listens_for(session, "do_orm_execute", once=True)
    def change(_: object) -> None:
        session.get_one(Order, 1).total += 1

    with pytest.raises(UnsavedChanges, match="Order rows FOR UPDATE"):
        session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 1)).all()
    assert not session.held_locks


@pytest.mark.read_committed
def test_a_set_that_was_refused_is_not_held(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.total = 31
    with pytest.raises(UnsavedChanges):
        session.scalars(session.entity_set(Order, ForUpdate))
    assert not session.held_locks
    assert order.total == 31


@pytest.mark.read_committed
def test_flushed_changes_are_no_pending_ones(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.total = 31
    session.flush()
    assert session.get_one_entity(Order, 1, ForUpdate) is order
    assert order.total == 31


@pytest.mark.read_committed
def test_a_value_that_was_set_to_itself_is_no_change(session: Session) -> None:
    order = session.get_one(Order, 1)
    order.total = 30
    order.lines[0].value = 10
    assert session.get_one_entity(Order, 1, ForUpdate) is order


@pytest.mark.read_committed
def test_details_of_other_kinds_are_refused(session: Session) -> None:
    with session.no_autoflush:
        session.get_one(Voucher, (2024, 1)).entries[0].value = 1
        session.get_one(Clause, 1).value = 1
        session.get_one(Account, 1).total = 1
    for entity, ident in ((Voucher, (2024, 1)), (Lease, 1), (Contract, 1), (Account, 1)):
        with pytest.raises(UnsavedChanges):
            session.get_entity(entity, ident, ForUpdate)


# --------------------------------------------------------------------------------------------------
# Pending changes unrelated to a lock: neither lost nor written before it.


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_what_the_header_loads_along_keeps_its_pending_edits(session: Session) -> None:
    for lock in (ForUpdate, SharedRead):
        customer, seller = session.get_one(Customer, 1), session.get_one(Customer, 2)
        with session.no_autoflush:
            customer.name, seller.name = "Anna", "Benno"
            invoice = session.get_one_entity(Invoice, 1, lock)
            assert (invoice.customer.name, invoice.seller.name) == ("Anna", "Benno")
            assert invoice.customer is customer
        session.rollback()


@pytest.mark.read_committed
def test_what_a_loaded_header_loads_along_keeps_its_pending_edits(session: Session) -> None:
    invoice = session.get_one(Invoice, 1)
    with session.no_autoflush:
        invoice.customer.name, invoice.seller.name = "Anna", "Benno"
        rows = session.scalars(session.entity_set(Invoice, ForUpdate).order_by(Invoice.id)).all()
        assert [row.customer.name for row in rows] == ["Anna", "Anna"]
        assert [row.seller.name for row in rows] == ["Benno", "Benno"]


@pytest.mark.read_committed
def test_edits_in_a_document_held_already_survive_the_next_lock(
    session: Session, elsewhere: Run
) -> None:
    second = session.get_one_entity(Order, 2, ForUpdate)
    second.total, second.lines[0].value = 6, 6
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.save_changes()
    assert elsewhere(sa.select(Order.total).order_by(Order.id)) == [(31,), (6,)]
    assert elsewhere(sa.select(Line.value).where(Line.order_id == 2)) == [(6,)]


@pytest.mark.read_committed
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


@pytest.mark.read_committed
def test_nothing_is_flushed_before_the_lock_of_a_row_in_two_tables(
    engine: sa.Engine, session: Session
) -> None:
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    with recorded(engine) as statements:
        session.get_one_entity(Lease, 1, ForUpdate)
    assert not [text for text in statements if "UPDATE lk_order" in text]


@pytest.mark.read_committed
def test_nothing_is_flushed_before_a_set_of_rows_in_two_tables(
    engine: sa.Engine, session: Session
) -> None:
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    with recorded(engine) as statements:
        session.scalars(session.entity_set(Lease, ForUpdate)).all()
    assert not [text for text in statements if "UPDATE lk_order" in text]


# --------------------------------------------------------------------------------------------------
# A lock or a read by key does not autoflush before it; afterwards autoflush works as usual.


@pytest.mark.read_committed
@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.NoLock])
def test_nothing_is_flushed_before_a_read_of_several(
    engine: sa.Engine, session: Session, lock: LockOptions
) -> None:
    session.add(Customer(id=9, name="new"))
    with recorded(engine) as statements:
        found = session.get_entities(Order, [1, 2], lock)
    assert len(found) == 2
    assert not [text for text in statements if "lk_customer" in text]
    assert len(session.new) == 1


@pytest.mark.read_committed
@pytest.mark.parametrize("autoflush", [True, False])
def test_a_lock_leaves_autoflush_as_it_was(session: Session, *, autoflush: bool) -> None:
    session.autoflush = autoflush
    order = session.get_document(Order, 1, ForUpdate)
    others = session.get_entities(Order, [2], ForUpdate)
    assert order is not None
    assert len(others) == 1
    assert session.autoflush is autoflush


@pytest.mark.read_committed
@pytest.mark.parametrize("autoflush", [True, False])
def test_a_lock_that_fails_leaves_autoflush_as_it_was(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, autoflush: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LockNotSupported("no")

    monkeypatch.setattr("sa_doclock.core.locking.by_key.OneByKey.send", fail)
    session.autoflush = autoflush
    with pytest.raises(LockNotSupported):
        session.get_entity(Order, 1, ForUpdate)
    assert session.autoflush is autoflush


# --------------------------------------------------------------------------------------------------
# Recording a lock can read the row by its own key: it does not flush.

mapped = registry()


@mapped.mapped
class Country:
    __tablename__ = "ar_country"
    code: Mapped[str] = mapped_column(sa.String(20, collation="NOCASE"), primary_key=True)
    people: Mapped[int]


@pytest.fixture
def session_autoflush_while_recorded(database: Database) -> Iterator[LockingSession]:
    database.create(mapped.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        rows = [{"code": "abc", "people": 1}, {"code": "xyz", "people": 2}]
        connection.execute(sa.insert(Country.__table__), rows)  # type: ignore[attr-defined]
    with LockingSession(engine) as session:
        yield session


@pytest.mark.databases("sqlite")
def test_a_key_that_is_spelled_otherwise_flushes_nothing(
    session_autoflush_while_recorded: LockingSession,
) -> None:
    other = session_autoflush_while_recorded.get_one(Country, "xyz")
    other.people += 1
    session_autoflush_while_recorded.commit()
    other.people += 1
    flushed: list[object] = []
    sa.event.listen(
        session_autoflush_while_recorded, "before_flush", lambda *_: flushed.append(True)
    )
    assert (
        session_autoflush_while_recorded.get_one_entity(
            Country, "ABC", LockOptions.ForUpdate
        ).people
        == 1
    )
    assert flushed == []
    assert other in session_autoflush_while_recorded.dirty
