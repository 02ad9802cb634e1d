"""A lock loads no parts that the session did not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.documents.loading import Bill
from tests.integration.documents.models import Category, Job, Line, Order, Tax
from tests.integration.documents.relationships import Album
from tests.integration.documents.whole import whole

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
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
    assert len(sent) == (again == "a set")  # it cannot know what it will find
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
