"""Parts at any depth that others change, add, delete or move, while the session holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.exc import ObjectDeletedError

from sa_doclock import LockingSession, LockOptions
from tests.integration.documents.loading import (
    Basket,
    Bill,
    Corner,
    Event,
    Fruit,
    Hint,
    Item,
    ItemNote,
    Nut,
    Parcel,
    Piece,
    Puzzle,
    Scan,
    Seed,
)
from tests.integration.documents.models import Line, Order, Tax
from tests.integration.documents.rows import whole

pytestmark = [pytest.mark.quick, pytest.mark.each_value]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


Run = Callable[..., None]

#: The ways to lock order 1; each returns it.
WAYS: dict[str, Callable[[LockingSession], Any]] = {
    "ForUpdate": lambda s: s.get_entity(Order, 1, ForUpdate),
    "SharedRead": lambda s: s.get_entity(Order, 1, SharedRead),
    "SnapshotRead": lambda s: s.get_entity(Order, 1, LockOptions.SnapshotRead),
    "get_document": lambda s: s.get_document(Order, 1, ForUpdate),
    "get_entities": lambda s: s.get_entities(Order, [2, 1], ForUpdate)[0],
    "get_documents": lambda s: s.get_documents(Order, [2, 1], SharedRead)[0],
    "a set": lambda s: s.scalars(s.entity_set(Order, ForUpdate).where(Order.id == 1)).one(),
    "a set of a join": lambda s: (
        s.scalars(s.entity_set(Order, SharedRead).join(Order.lines).where(Line.value == 10))
        .unique()
        .one()
    ),
}

FIRST = (30, [(10, [4, 6]), (20, [20])])


def change(entity: type[Any], ident: int, **values: object) -> sa.Executable:
    return sa.update(entity).where(entity.id == ident).values(values)


def delete(entity: type[Any], ident: int) -> sa.Executable:
    return sa.delete(entity).where(entity.id == ident)


#: The action of another session, and the resulting order 1.
ACTIONS: dict[str, tuple[list[sa.Executable], Any]] = {
    "a line is changed": ([change(Line, 2, value=21)], (30, [(10, [4, 6]), (21, [20])])),
    "a tax is changed": ([change(Tax, 1, value=7)], (30, [(10, [4, 7]), (20, [20])])),
    "a line is added": (
        [sa.insert(Line).values(id=9, order_id=1, value=7)],
        (30, [(10, [4, 6]), (20, [20]), (7, [])]),
    ),
    "a tax is added": (
        [sa.insert(Tax).values(id=9, line_id=2, value=7)],
        (30, [(10, [4, 6]), (20, [7, 20])]),
    ),
    "a line is deleted": ([delete(Tax, 3), delete(Line, 2)], (30, [(10, [4, 6])])),
    "a tax is deleted": ([delete(Tax, 1)], (30, [(10, [4]), (20, [20])])),
    "a line comes": (
        [change(Line, 3, order_id=1)],
        (30, [(10, [4, 6]), (20, [20]), (5, [5])]),
    ),
    "a line goes": ([change(Line, 2, order_id=2)], (30, [(10, [4, 6])])),
    "a tax comes from another order": (
        [change(Tax, 4, line_id=2, value=8)],
        (30, [(10, [4, 6]), (20, [8, 20])]),
    ),
    "a tax goes to another order": ([change(Tax, 1, line_id=3)], (30, [(10, [4]), (20, [20])])),
    "a tax moves": ([change(Tax, 1, line_id=2)], (30, [(10, [4]), (20, [20, 6])])),
}


def know(session: LockingSession) -> list[Any]:
    """Load both orders with everything; keeping the list keeps the objects alive."""
    orders = session.scalars(sa.select(Order).order_by(Order.id)).all()
    known = [(order, line, list(line.taxes)) for order in orders for line in order.lines]
    assert whole(orders[0]) == FIRST
    session.commit()
    return known


def know_parts_alone(session: LockingSession) -> list[Any]:
    known = [*session.scalars(sa.select(Line)), *session.scalars(sa.select(Tax))]
    session.commit()
    return known


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("known", [know, know_parts_alone])
def test_the_document_is_as_another_left_it(
    session: LockingSession,
    elsewhere: Run,
    restore: Callable[[], None],
    way: str,
    known: Callable[[LockingSession], list[Any]],
) -> None:
    wrong = {}
    for action, (statements, expected) in ACTIONS.items():
        before = known(session)
        elsewhere(*statements)
        order = WAYS[way](session)
        if whole(order) != expected:
            wrong[action] = whole(order)
        assert before
        session.close()
        restore()
    assert wrong == {}


@pytest.mark.parametrize("way", WAYS)
def test_by_whatever_leads_to_a_part(session: LockingSession, elsewhere: Run, way: str) -> None:
    known = know(session)
    line, tax = session.get_one(Line, 2), session.get_one(Tax, 1)
    session.rollback()
    elsewhere(change(Line, 2, value=21), change(Tax, 1, value=7))
    order = WAYS[way](session)
    assert (line.value, tax.value) == (21, 7)
    assert session.get_one(Tax, 1).value == 7
    assert session.scalars(sa.select(Line).where(Line.order_id == 1).order_by(Line.id)).all() == [
        session.get_one(Line, 1),
        line,
    ]
    taxes = session.scalars(sa.select(Tax).where(Tax.line_id == 1).order_by(Tax.id))
    assert [one.value for one in taxes] == [7, 4]
    assert line.order is order
    assert known


@pytest.mark.parametrize("way", WAYS)
def test_deleted_parts_are_no_more(session: LockingSession, elsewhere: Run, way: str) -> None:
    known = know(session)
    line, tax, other = session.get_one(Line, 2), session.get_one(Tax, 3), session.get_one(Tax, 1)
    session.rollback()
    elsewhere(delete(Tax, 3), delete(Tax, 1), delete(Line, 2))
    order = WAYS[way](session)
    for gone in (line, tax, other):
        with pytest.raises(ObjectDeletedError):
            _ = gone.value
    assert whole(order) == (30, [(10, [4])])
    assert known


@pytest.mark.parametrize("way", WAYS)
def test_a_deleted_part_cannot_be_got(session: LockingSession, elsewhere: Run, way: str) -> None:
    known = know(session)
    elsewhere(delete(Tax, 3), delete(Tax, 1), delete(Line, 2))
    order = WAYS[way](session)
    assert [session.get(Tax, 3), session.get(Tax, 1), session.get(Line, 2)] == [None] * 3
    assert session.get(Tax, 2) is not None
    assert known
    assert order


def test_a_part_that_has_moved_knows_its_owner(session: LockingSession, elsewhere: Run) -> None:
    known = know(session)
    tax, line = session.get_one(Tax, 4), session.get_one(Line, 3)
    session.rollback()
    elsewhere(change(Tax, 4, line_id=2), change(Line, 3, order_id=1))
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert (tax.line, tax.line_id) == (order.lines[1], 2)
    assert (line.order, line.order_id) == (order, 1)
    assert known


def test_without_a_lock_they_are_as_they_were_read(session: LockingSession, elsewhere: Run) -> None:
    known = know(session)
    elsewhere(*ACTIONS["a tax is changed"][0])
    for lock in (LockOptions.None_, LockOptions.NoLock):
        assert whole(session.get_document(Order, 1, lock)) == FIRST
        session.rollback() if lock is LockOptions.NoLock else session.commit()
    assert known


def test_pending_changes_of_other_documents_stay(session: LockingSession, elsewhere: Run) -> None:
    known = know(session)
    line = session.get_one(Line, 3)
    line.value = 6
    elsewhere(*ACTIONS["a tax is changed"][0])
    with session.no_autoflush:  # the guard would refuse it
        order = session.get_one_entity(Order, 1, ForUpdate)
        assert whole(order) == (30, [(10, [4, 7]), (20, [20])])
    assert line.value == 6
    assert line in session.dirty
    session.rollback()
    assert known


# --------------------------------------------------------------------------------------------------
# Parts are fresh whichever way the collection loads: raise, write_only, dynamic, selectin, joined.

WITH_NOTES = selectinload(Bill.items).selectinload(Item.notes)

#: The ways to lock document 1 of a class; each returns it.
WAYS_COLLECTIONS: dict[str, Callable[[LockingSession, Any], Any]] = {
    "ForUpdate": lambda s, entity: s.get_entity(entity, 1, ForUpdate),
    "SharedRead": lambda s, entity: s.get_entity(entity, 1, SharedRead),
    "get_document": lambda s, entity: s.get_document(entity, 1, ForUpdate),
    "get_entities": lambda s, entity: s.get_entities(entity, [1, 2], ForUpdate)[0],
    "get_documents": lambda s, entity: s.get_documents(entity, [1, 2], ForUpdate)[0],
    "a set": lambda s, entity: s.scalars(
        s.entity_set(entity, ForUpdate).where(entity.id == 1)
    ).one(),
}


def know_bills(session: LockingSession) -> list[Any]:
    bills = list(session.scalars(sa.select(Bill).options(WITH_NOTES).order_by(Bill.id)))
    session.commit()
    assert whole(bills) == [(30, [(10, [10]), (20, [20])]), (5, [(5, [5])])]
    return [(bill, list(bill.items)) for bill in bills]


@pytest.mark.parametrize("way", WAYS_COLLECTIONS)
def test_raise_at_both_levels_stays_readable_and_is_fresh(
    session: LockingSession, elsewhere: Run, way: str
) -> None:
    known = know_bills(session)
    elsewhere(
        sa.update(Item).where(Item.id == 1).values(value=11),
        sa.update(ItemNote).where(ItemNote.id == 1).values(value=12),
        sa.insert(ItemNote).values(id=8, item_id=1, value=8),
        sa.update(ItemNote).where(ItemNote.id == 2).values(item_id=1),
        sa.insert(Item).values(id=9, bill_id=1, value=9),
    )
    bill = WAYS_COLLECTIONS[way](session, Bill)
    assert whole(bill) == (30, [(11, [12, 20, 8]), (20, []), (9, [])])
    assert known


@pytest.mark.parametrize("way", WAYS_COLLECTIONS)
def test_raise_of_which_one_level_was_loaded(
    session: LockingSession, elsewhere: Run, sent: list[str], way: str
) -> None:
    bill = session.get_one(Bill, 1, options=[selectinload(Bill.items)])
    session.commit()
    elsewhere(sa.update(Item).where(Item.id == 1).values(value=11))
    sent.clear()
    assert WAYS_COLLECTIONS[way](session, Bill) is bill
    assert [item.value for item in bill.items] == [11, 20]
    if "document" not in way:
        assert not any("dc_item_note" in text for text in sent)
        with pytest.raises(InvalidRequestError):
            _ = bill.items[0].notes


@pytest.mark.parametrize("way", WAYS_COLLECTIONS)
def test_raise_of_other_documents_stays_readable(session: LockingSession, way: str) -> None:
    known = know_bills(session)
    WAYS_COLLECTIONS[way](session, Bill)
    second = session.get_one(Bill, 2)
    assert whole(second) == (5, [(5, [5])])
    assert known


def test_raise_that_was_never_loaded_raises_still(session: LockingSession) -> None:
    bill = session.get_one_entity(Bill, 1, ForUpdate)
    with pytest.raises(InvalidRequestError):
        _ = bill.items


def test_raise_with_an_option_of_the_callers_own(session: LockingSession, elsewhere: Run) -> None:
    known = know_bills(session)
    elsewhere(sa.update(ItemNote).where(ItemNote.id == 1).values(value=12))
    bill = session.get_one_entity(Bill, 1, ForUpdate, options=[WITH_NOTES])
    assert whole(bill) == (30, [(10, [12]), (20, [20])])
    assert known


def test_raise_with_an_option_for_the_first_level_alone(
    session: LockingSession, elsewhere: Run
) -> None:
    known = know_bills(session)
    elsewhere(sa.update(ItemNote).where(ItemNote.id == 1).values(value=12))
    bill = session.get_one_entity(Bill, 1, ForUpdate, options=[selectinload(Bill.items)])
    assert whole(bill) == (30, [(10, [12]), (20, [20])])
    assert known


@pytest.mark.parametrize("way", WAYS_COLLECTIONS)
def test_raise_on_a_subclass_of_a_part(session: LockingSession, elsewhere: Run, way: str) -> None:
    along = selectinload(Puzzle.pieces.of_type(Corner)).selectinload(Corner.hints)
    puzzle = session.get_one(Puzzle, 1)
    corner = session.scalars(sa.select(Corner).options(selectinload(Corner.hints))).one()
    assert whole(puzzle) == (30, [(10, [10]), 20])
    session.commit()
    elsewhere(
        sa.update(Hint).where(Hint.id == 1).values(value=11),
        sa.update(Piece).where(Piece.id == 2).values(value=21),
    )
    assert WAYS_COLLECTIONS[way](session, Puzzle) is puzzle
    assert whole(puzzle) == (30, [(10, [11]), 21])
    assert corner
    assert along


@pytest.mark.parametrize("way", WAYS_COLLECTIONS)
def test_write_only_and_dynamic(session: LockingSession, elsewhere: Run, way: str) -> None:
    parcel = session.get_one(Parcel, 1)
    scans, events = list(session.scalars(parcel.scans.select())), list(parcel.events)
    session.commit()
    elsewhere(
        sa.update(Scan).where(Scan.id == 1).values(value=11),
        sa.delete(Scan).where(Scan.id == 2),
        sa.update(Event).where(Event.id == 1).values(value=11),
        sa.insert(Event).values(id=9, parcel_id=1, value=9),
    )
    assert WAYS_COLLECTIONS[way](session, Parcel) is parcel
    assert [scan.value for scan in session.scalars(parcel.scans.select())] == [11]
    assert [event.value for event in parcel.events] == [11, 20, 9]
    assert (scans[0].value, events[0].value) == (11, 11)


@pytest.mark.parametrize("way", WAYS_COLLECTIONS)
def test_selectin_and_joined(session: LockingSession, elsewhere: Run, way: str) -> None:
    basket = session.get_one(Basket, 1)
    known = [(fruit, list(fruit.seeds)) for fruit in basket.fruits], list(basket.nuts)
    assert whole(basket) == (30, [(10, [10]), (20, [20])], [30])
    session.commit()
    elsewhere(
        sa.update(Fruit).where(Fruit.id == 1).values(value=11),
        sa.update(Seed).where(Seed.id == 1).values(value=12),
        sa.insert(Seed).values(id=9, fruit_id=2, value=9),
        sa.update(Nut).where(Nut.id == 1).values(value=31),
        sa.insert(Nut).values(id=9, basket_id=1, value=9),
    )
    assert WAYS_COLLECTIONS[way](session, Basket) is basket
    assert whole(basket) == (30, [(11, [12]), (20, [20, 9])], [31, 9])
    assert known
