"""Pending changes on parts at any depth: reported before the lock, or under it where it must ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, UnsavedChanges
from tests.integration.documents.models import (
    Category,
    Entry,
    Job,
    Journal,
    Line,
    Order,
    Split,
    Task,
    Tax,
)
from tests.integration.documents.relationships import Album, Tag

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
LOCKS: dict[str, Callable[[LockingSession, Any, Any], Any]] = {
    "ForUpdate": lambda s, entity, ident: s.get_entity(entity, ident, ForUpdate),
    "SharedRead": lambda s, entity, ident: s.get_entity(entity, ident, SharedRead),
    "get_document": lambda s, entity, ident: s.get_document(entity, ident, ForUpdate),
    "get_entities": lambda s, entity, ident: s.get_entities(entity, [ident], ForUpdate),
    "a set": lambda s, entity, _: s.scalars(s.entity_set(entity, ForUpdate)).all(),
}


def known(session: LockingSession, entity: type[Any], ident: Any) -> Any:
    """Read a row in a transaction that is over: InnoDB's default protects no document."""
    thing = session.get_one(entity, ident)
    session.commit()
    return thing


def changed(session: LockingSession, entity: type[Any], ident: Any) -> Any:
    thing = known(session, entity, ident)
    thing.value += 1
    return thing


def removed(session: LockingSession, entity: type[Any], ident: Any) -> Any:
    thing = known(session, entity, ident)
    session.delete(thing)
    return thing


def added(session: LockingSession, thing: Any) -> Any:
    session.add(thing)
    return thing


def moved(session: LockingSession, entity: type[Any], ident: Any, **values: object) -> Any:
    thing = known(session, entity, ident)
    for name, value in values.items():
        setattr(thing, name, value)
    return thing


#: A change of a document: pending, of a row whose owner may not be in the session.
PENDING: dict[str, tuple[type[Any], Any, Callable[[LockingSession], Any]]] = {
    "line changed": (Order, 1, lambda s: changed(s, Line, 1)),
    "tax changed": (Order, 1, lambda s: changed(s, Tax, 1)),
    "tax deleted": (Order, 1, lambda s: removed(s, Tax, 1)),
    "tax added": (Order, 1, lambda s: added(s, Tax(id=9, line_id=2, value=1))),
    "line added": (Order, 1, lambda s: added(s, Line(id=9, order_id=1, value=1))),
    "line comes": (Order, 1, lambda s: moved(s, Line, 3, order_id=1)),
    "line goes": (Order, 1, lambda s: moved(s, Line, 1, order_id=2)),
    "tax comes": (Order, 1, lambda s: moved(s, Tax, 4, line_id=2)),
    "tax goes": (Order, 1, lambda s: moved(s, Tax, 1, line_id=3)),
    "composite": (Journal, (2024, 1), lambda s: changed(s, Split, 1)),
    "composite, one level": (Journal, (1, 2024), lambda s: changed(s, Entry, (2024, 1, 1))),
    "depth 4": (Job, 1, lambda s: changed(s, Task, 4)),
    "many-to-many": (Album, 2, lambda s: changed(s, Tag, 1)),
}


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("owners", [False, True])
def test_they_are_refused(session: LockingSession, lock: str, *, owners: bool) -> None:
    passed = []
    for name, (entity, ident, change) in PENDING.items():
        kept = everything(session) if owners else []
        session.commit()
        with session.no_autoflush:
            thing = change(session)
            try:
                LOCKS[lock](session, entity, ident)
                passed.append(name)
            except UnsavedChanges as error:
                passed += [name] * (type(thing).__name__ not in str(error))
        assert thing in session
        assert len(kept) > 30 or not owners
        session.rollback()
        session.expunge_all()
    assert passed == []


def everything(session: LockingSession) -> list[Any]:
    entities: list[type[Any]] = [Order, Line, Tax, Journal, Entry, Split, Job, Task, Album, Tag]
    return [thing for entity in entities for thing in session.scalars(sa.select(entity))]


@pytest.mark.parametrize("lock", ["ForUpdate", "SharedRead", "get_document", "get_entities"])
def test_those_of_another_document_are_left_alone(session: LockingSession, lock: str) -> None:
    others: list[tuple[type[Any], int, type[Any], Any]] = [
        (Tax, 4, Order, 1),
        (Split, 4, Journal, (2024, 1)),
        (Split, 5, Journal, (2024, 1)),
        (Task, 4, Job, 2),
        (Tag, 3, Album, 2),
    ]
    for part, number, header, ident in others:
        with session.no_autoflush:
            thing = changed(session, part, number)
            LOCKS[lock](session, header, ident)
        assert thing in session.dirty
        session.rollback()
        session.expunge_all()


def test_what_must_be_asked_is_asked_under_the_lock(
    session: LockingSession, sent: list[str]
) -> None:
    tax = changed(session, Tax, 1)
    sent.clear()
    with pytest.raises(UnsavedChanges, match="Tax in its 'taxes'"):
        session.get_entity(Order, 1, ForUpdate)
    assert len(sent) >= 2
    assert "dc_order" in sent[0].partition("WHERE")[0]
    assert tax in session.dirty
    assert not session.held_locks  # so that the guard does not let the change through
    with pytest.raises(UnlockedWrite):
        session.flush()


def test_what_needs_no_answer_is_reported_before_anything_is_sent(
    session: LockingSession, sent: list[str]
) -> None:
    line = known(session, Line, 1)
    tax = changed(session, Tax, 1)
    sent.clear()
    with pytest.raises(UnsavedChanges, match="Order 1"):
        session.get_entity(Order, 1, ForUpdate)
    assert sent == []
    assert line
    assert tax


def test_a_pending_tree_is_its_topmost_headers(session: LockingSession) -> None:
    category = known(session, Category, 4)
    category.total += 1
    with session.no_autoflush:
        with pytest.raises(UnsavedChanges):
            session.get_entity(Category, 4, ForUpdate)
        with pytest.raises(UnsavedChanges):
            session.get_entity(Category, 1, ForUpdate)
        session.get_entity(Category, 5, ForUpdate)
    assert category in session.dirty
