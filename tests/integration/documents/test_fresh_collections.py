"""Fresh, however the collection is loaded: raise, write_only, dynamic, selectin, joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import selectinload

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
from tests.integration.documents.whole import whole

pytestmark = pytest.mark.quick

Run = Callable[..., None]
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
WITH_NOTES = selectinload(Bill.items).selectinload(Item.notes)

#: The ways to lock document 1 of a class; each returns it.
WAYS: dict[str, Callable[[LockingSession, Any], Any]] = {
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


@pytest.mark.parametrize("way", WAYS)
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
    bill = WAYS[way](session, Bill)
    assert whole(bill) == (30, [(11, [12, 20, 8]), (20, []), (9, [])])
    assert known


@pytest.mark.parametrize("way", WAYS)
def test_raise_of_which_one_level_was_loaded(
    session: LockingSession, elsewhere: Run, sent: list[str], way: str
) -> None:
    bill = session.get_one(Bill, 1, options=[selectinload(Bill.items)])
    session.commit()
    elsewhere(sa.update(Item).where(Item.id == 1).values(value=11))
    sent.clear()
    assert WAYS[way](session, Bill) is bill
    assert [item.value for item in bill.items] == [11, 20]
    if "document" not in way:
        assert not any("dc_item_note" in text for text in sent)
        with pytest.raises(InvalidRequestError):
            _ = bill.items[0].notes


@pytest.mark.parametrize("way", WAYS)
def test_raise_of_other_documents_stays_readable(session: LockingSession, way: str) -> None:
    known = know_bills(session)
    WAYS[way](session, Bill)
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


@pytest.mark.parametrize("way", WAYS)
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
    assert WAYS[way](session, Puzzle) is puzzle
    assert whole(puzzle) == (30, [(10, [11]), 21])
    assert corner
    assert along


@pytest.mark.parametrize("way", WAYS)
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
    assert WAYS[way](session, Parcel) is parcel
    assert [scan.value for scan in session.scalars(parcel.scans.select())] == [11]
    assert [event.value for event in parcel.events] == [11, 20, 9]
    assert (scans[0].value, events[0].value) == (11, 11)


@pytest.mark.parametrize("way", WAYS)
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
    assert WAYS[way](session, Basket) is basket
    assert whole(basket) == (30, [(11, [12]), (20, [20, 9])], [31, 9])
    assert known
