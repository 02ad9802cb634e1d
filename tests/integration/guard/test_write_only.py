"""Parts that are never loaded, and are written by their collection's own statements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sa_doclock import LockingSession
from tests.integration.guard.models import Book, Shelf
from tests.integration.guard.steps import hold, refused, writes_sent

Action = Callable[[LockingSession], object]


def add(session: LockingSession) -> object:
    (shelf := session.get_one(Shelf, 1)).books.add(Book(id=9))
    return shelf


def remove(session: LockingSession) -> object:
    shelf, book = session.get_one(Shelf, 1), session.get_one(Book, 1)
    shelf.books.remove(book)
    return shelf, book


def insert(session: LockingSession) -> object:
    return session.execute(session.get_one(Shelf, 1).books.insert(), [{"id": 8}, {"id": 9}])


def update(session: LockingSession) -> object:
    return session.execute(session.get_one(Shelf, 1).books.update().values(pages=1))


def delete(session: LockingSession) -> object:
    return session.execute(session.get_one(Shelf, 1).books.delete())


def delete_shelf(session: LockingSession) -> object:
    session.delete(shelf := session.get_one(Shelf, 1))
    return shelf


ACTIONS: tuple[Action, ...] = (add, remove, insert, update, delete)
each_action = pytest.mark.parametrize("action", ACTIONS)


@each_action
def test_the_lock_is_needed(session: LockingSession, action: Action) -> None:
    held = hold(session, Shelf, 2)
    kept: list[object] = []
    with refused(session, Shelf, 1):
        kept.append(action(session))
        session.flush()
    assert held


@each_action
def test_with_the_lock_it_goes_through(session: LockingSession, action: Action) -> None:
    held = hold(session, Shelf, 1)
    with writes_sent(session) as sent:
        kept = action(session)
        session.commit()
    assert sent
    assert all((held, kept))


def test_a_part_that_moves_needs_both(session: LockingSession) -> None:
    for held, missing in ((1, 2), (2, 1)):
        kept = hold(session, Shelf, held)
        shelf, book = session.get_one(Shelf, 2), session.get_one(Book, 1)
        shelf.books.add(book)
        with refused(session, Shelf, missing):
            session.flush()
        session.rollback()
        assert kept


def test_a_shelf_is_deleted_under_its_lock_and_its_books_are_not_loaded(
    session: LockingSession,
) -> None:
    shelf = delete_shelf(session)
    with refused(session, Shelf, 1):
        session.flush()
    session.rollback()
    (shelf,) = hold(session, Shelf, 1)
    session.delete(shelf)
    with writes_sent(session) as sent:
        session.flush()
    assert len(sent) == 1
