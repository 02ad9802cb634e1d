"""get_document() of a known document: loaded parts and pending changes stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import joinedload, selectinload

from sa_doclock import LockingSession, LockNotSupported, LockOptions, UnsavedChanges
from tests.integration.documents.hierarchies import Album
from tests.integration.documents.loading import Bill, Folder, Parcel, Sheet
from tests.integration.documents.models import Category, Job, Line, Order, Rate, Tax
from tests.integration.documents.rows import whole
from tests.integration.locking.steps import locks_rows

pytestmark = [pytest.mark.quick, pytest.mark.each_value]

ForUpdate = LockOptions.ForUpdate
Run = Callable[..., None]
LOCKS = [LockOptions.SharedRead, ForUpdate, LockOptions.SnapshotRead]


@pytest.mark.parametrize("lock", LOCKS)
def test_held_and_loaded_sends_nothing(
    session: LockingSession, sent: list[str], lock: LockOptions
) -> None:
    for entity in (Order, Album, Category, Bill):
        document = session.get_document(entity, 1, lock)
        sent.clear()
        assert session.get_document(entity, 1, lock) is document
        assert sent == []
        session.rollback()


@pytest.mark.parametrize("lock", LOCKS)
def test_held_and_expired_is_loaded_once(
    session: LockingSession, sent: list[str], lock: LockOptions
) -> None:
    order = session.get_one_document(Order, 1, lock)
    kept = [*order.lines, *(tax for line in order.lines for tax in line.taxes)]
    session.expire_all()
    for statements in (3, 0):
        sent.clear()
        assert session.get_document(Order, 1, lock) is order
        assert len(sent) == statements
    assert all(one in session for one in kept)


def test_what_a_listener_loads_and_changes_meanwhile_stays(session: LockingSession) -> None:
    folder, new = session.get_one_entity(Folder, 1, ForUpdate), Sheet(id=99, value=1)

    def append(state: sa.orm.ORMExecuteState) -> None:
        if not state.is_relationship_load and new not in folder.sheets:
            folder.sheets.append(new)

    sa.event.listen(session, "do_orm_execute", append)
    assert new in session.get_one_document(Folder, 1, ForUpdate).sheets


def test_a_set_leaves_others_that_are_held(session: LockingSession, sent: list[str]) -> None:
    session.get_entity(Order, 9, ForUpdate)  # a transaction in which every database can lock
    orders = session.scalars(sa.select(Order)).all()
    for number in (2, 1):  # 1 was read before the lock of 2
        session.get_entity(Order, number, ForUpdate)
    session.scalars(session.entity_set(Order, ForUpdate).where(Order.id == 2)).all()
    sent.clear()
    assert all(order.total for order in orders if order.id == 1)
    assert sent == []


def test_the_parts_of_another_document_come_back_by_one_select(
    session: LockingSession, sent: list[str]
) -> None:
    session.get_one_entity(Order, 2, ForUpdate)
    other = session.get_one(Order, 1)
    session.get_entity(Order, 8, ForUpdate)
    assert len(other.lines) == 2
    session.get_entity(Order, 9, ForUpdate)  # each of them may have moved there
    sent.clear()
    assert all(line.value for line in other.lines)
    assert len(sent) == 1


def test_the_topmost_of_a_tree_that_is_held_is_not_read_again(
    session: LockingSession, sent: list[str]
) -> None:
    top = session.get_one_document(Category, 1, ForUpdate)
    session.get_one_entity(Category, 5, ForUpdate)
    sent.clear()
    assert (top.total, [child.total for child in top.children]) == (30, [31])
    assert sent == []


def test_held_and_not_loaded_loads_the_parts(session: LockingSession, sent: list[str]) -> None:
    order = session.get_entity(Order, 1, ForUpdate)
    sent.clear()
    assert session.get_document(Order, 1, ForUpdate) is order
    assert len(sent) == 2
    assert not any(map(locks_rows, sent))


def test_one_level_that_is_loaded_is_left_out(session: LockingSession, sent: list[str]) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    lines = list(order.lines)
    sent.clear()
    session.get_document(Order, 1, ForUpdate)
    assert len(sent) == 1
    assert order.lines == lines
    sent.clear()
    assert whole(order) == (30, [(10, [4, 6]), (20, [20])])
    assert sent == []


def test_a_pending_line_survives(session: LockingSession, sent: list[str]) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    line = Line(id=9, value=7, taxes=[Tax(id=9, value=7)])
    order.lines.append(line)
    session.get_document(Order, 1, ForUpdate)
    assert whole(order) == (30, [(10, [4, 6]), (20, [20]), (7, [7])])
    assert line in session.new
    assert not any(text.startswith("INSERT") for text in sent)
    session.commit()
    assert session.scalar(sa.select(Tax.value).where(Tax.id == 9)) == 7


def test_a_pending_line_of_a_collection_that_was_not_loaded_survives(
    session: LockingSession,
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    line = Line(id=9, value=7, order=order)
    session.add(line)
    assert "lines" not in sa.inspect(order).dict
    session.get_document(Order, 1, ForUpdate)
    assert whole(order) == (30, [(10, [4, 6]), (20, [20]), (7, [])])
    assert line in session.new


def test_a_line_that_is_pending_to_move_is_where_it_will_be(session: LockingSession) -> None:
    session.get_entities(Order, [1, 2], ForUpdate)
    line, first, second = (session.get_one(*one) for one in ((Line, 2), (Order, 1), (Order, 2)))
    line.order = second
    session.get_documents(Order, [1, 2], ForUpdate)
    assert first.lines == [session.get_one(Line, 1)]
    assert second.lines == [session.get_one(Line, 3), line]
    session.commit()
    assert line.order_id == 2


def test_a_line_that_is_pending_to_move_takes_its_taxes_along(session: LockingSession) -> None:
    first, second = session.get_entities(Order, [1, 2], ForUpdate)
    line = session.get_one(Line, 1)
    with session.no_autoflush:
        line.order = second
        assert session.get_document(Order, 2, ForUpdate) is second
    assert [tax.value for tax in line.taxes] == [4, 6]
    assert first not in session.deleted


def test_pending_values_stay(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.lines[0].value = 11
    order.total = 31
    session.get_document(Order, 1, ForUpdate)
    assert whole(order) == (31, [(11, [4, 6]), (20, [20])])


def test_before_the_lock_pending_changes_are_refused(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 11
    with pytest.raises(UnsavedChanges, match="Line"):
        session.get_document(Order, 1, ForUpdate)


def test_without_a_lock_they_are_flushed_as_by_every_read(session: LockingSession) -> None:
    sheet = session.get_one(Sheet, 1)
    sheet.value = 11
    assert whole(session.get_document(Folder, 1)) == (30, [11, 20])
    assert sheet not in session.dirty


@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.NoLock, *LOCKS])
def test_a_line_that_was_expired_is_loaded_with_the_rest(
    session: LockingSession, sent: list[str], lock: LockOptions
) -> None:
    order = session.get_document(Order, 1, lock)
    assert order is not None
    session.expire(order.lines[0])
    session.expire(order.lines[1].taxes[0])
    session.get_document(Order, 1, lock)
    sent.clear()
    assert whole(order) == (30, [(10, [4, 6]), (20, [20])])
    assert sent == []


def test_options_reach_what_is_no_part(session: LockingSession, sent: list[str]) -> None:
    along = selectinload(Order.lines).selectinload(Line.taxes).selectinload(Tax.rate)
    order = session.get_document(Order, 1, ForUpdate, options=[along])
    assert order is not None
    assert len(sent) == 4
    sent.clear()
    rates = [tax.rate and tax.rate.value for line in order.lines for tax in line.taxes]
    assert rates == [None, 19, 19]
    assert sent == []


def test_options_that_join_are_refused(session: LockingSession) -> None:
    with pytest.raises(LockNotSupported):
        session.get_document(Order, 1, ForUpdate, options=[joinedload(Order.lines)])


def test_what_is_no_part_is_not_loaded(session: LockingSession, sent: list[str]) -> None:
    order = session.get_document(Order, 1, ForUpdate)
    assert order is not None
    assert "rate" not in sa.inspect(order.lines[0].taxes[0]).dict
    assert not any(Rate.__tablename__ + ".value" in text for text in sent)


def test_collections_too_large_to_load_are_not(session: LockingSession, sent: list[str]) -> None:
    parcel = session.get_document(Parcel, 1, ForUpdate)
    assert parcel is not None
    assert len(sent) == 1
    assert [scan.value for scan in session.scalars(parcel.scans.select())] == [10, 20]
    assert [one.value for one in parcel.events] == [10, 20]


def test_parts_know_their_owner(session: LockingSession, sent: list[str]) -> None:
    order = session.get_document(Order, 1, ForUpdate)
    assert order is not None
    sent.clear()
    for line in order.lines:
        assert line.order is order
        assert [tax.line is line for tax in line.taxes] == [True] * len(line.taxes)
    assert sent == []


def test_it_is_no_change(session: LockingSession, sent: list[str]) -> None:
    documents: list[Any] = [session.get_document(one, 1, ForUpdate) for one in (Album, Category)]
    sent.clear()
    assert not session.dirty
    session.commit()
    assert sent == []
    assert documents


# --------------------------------------------------------------------------------------------------
# A lock does not load parts that the session had not loaded.

ENTITIES: list[type[Any]] = [Order, Job, Category, Album, Bill]

WAYS: dict[str, Callable[[LockingSession, Any], Any]] = {
    "get_entity": lambda s, entity: s.get_entity(entity, 1, ForUpdate),
    "get_entities": lambda s, entity: s.get_entities(entity, [1], ForUpdate),
    "a set": lambda s, entity: s.scalars(
        s.entity_set(entity, ForUpdate).where(entity.id == 1)
    ).all(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("entity", ENTITIES)
def test_a_lock_of_a_header_alone_sends_one_statement(
    session: LockingSession, sent: list[str], way: str, entity: type[Any]
) -> None:
    for known in (False, True):
        header = session.get(entity, 1) if known else None
        session.commit()
        sent.clear()
        assert WAYS[way](session, entity)
        assert len(sent) == 1
        session.close()
        assert (header is not None) is known


@pytest.mark.parametrize("way", WAYS)
def test_loaded_parts_are_read_at_their_next_use(
    session: LockingSession, sent: list[str], way: str
) -> None:
    order = session.get_one(Order, 1)
    known = whole(order), list(order.lines)
    session.commit()
    sent.clear()
    WAYS[way](session, Order)
    assert len(sent) == 1
    lines = order.lines
    assert [line.value for line in lines] == [10, 20]
    assert len(sent) == 2
    assert known


def test_what_was_never_loaded_of_a_part_is_not_loaded_with_it(
    session: LockingSession, sent: list[str]
) -> None:
    lines = session.scalars(sa.select(Line).where(Line.order_id == 1)).all()
    session.commit()
    session.get_one_entity(Order, 1, ForUpdate)
    sent.clear()
    assert sorted(line.value for line in lines) == [10, 20]
    assert len(sent) == 2
    assert not any("dc_tax" in text for text in sent)


@pytest.mark.parametrize("again", ["get_entity", "get_document", "get_entities", "a set"])
def test_held_documents_keep_what_was_loaded(
    session: LockingSession, sent: list[str], again: str
) -> None:
    order = session.get_document(Order, 1, ForUpdate)
    other = session.get_entity(Order, 2, ForUpdate)
    sent.clear()
    if again == "get_document":
        session.get_document(Order, 1, ForUpdate)
    else:
        WAYS[again](session, Order)
    assert len(sent) == (again == "a set")  # the rest depends on the rows it finds
    sent.clear()
    assert whole(order) == (30, [(10, [4, 6]), (20, [20])])
    assert sent == []
    assert other


def test_parts_of_a_held_document_are_not_read_for_the_lock_of_another(
    session: LockingSession, sent: list[str]
) -> None:
    order = session.get_document(Order, 1, ForUpdate)
    session.get_document(Order, 2, ForUpdate)
    session.get_entities(Order, [1, 2], ForUpdate)
    sent.clear()
    assert whole(order) == (30, [(10, [4, 6]), (20, [20])])
    assert sent == []


def test_after_the_end_of_the_transaction_they_are_read_again(
    session: LockingSession, sent: list[str]
) -> None:
    order = session.get_document(Order, 1, ForUpdate)
    session.commit()
    session.get_document(Order, 1, ForUpdate)
    assert len(sent) == 6
    sent.clear()
    assert whole(order) == (30, [(10, [4, 6]), (20, [20])])
    assert sent == []


def test_a_deferred_column_stays_deferred_and_a_pending_object_new(
    session: LockingSession,
) -> None:
    tax = Tax(id=9, line_id=3, value=5)
    session.add(tax)
    session.get_entity(Order, 1, ForUpdate)
    assert tax in session.new
    session.rollback()
