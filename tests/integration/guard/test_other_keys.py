"""Parts whose foreign key refers to another key of the header than the primary one.

Which header that is, only the database knows: a new owner may be asked for when the row is there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Budget, Post
from tests.integration.guard.steps import hold, pending, refused, writes_sent

Action = Callable[[LockingSession], object]


def change(session: LockingSession) -> object:
    (post := session.get_one(Post, 1)).value = 1
    return post


def delete(session: LockingSession) -> object:
    session.delete(post := session.get_one(Post, 1))
    return post


def add(session: LockingSession) -> object:
    session.add(post := Post(id=9, code="a"))
    return post


def append(session: LockingSession) -> object:
    (budget := session.get_one(Budget, 1)).posts.append(Post(id=9))
    return budget


def remove(session: LockingSession) -> object:
    (budget := session.get_one(Budget, 1)).posts.clear()
    return budget


def update_statement(session: LockingSession) -> object:
    return session.execute(sa.update(Post).where(Post.id == 1).values(value=1))


def delete_statement(session: LockingSession) -> object:
    return session.execute(sa.delete(Post).where(Post.code == "a"))


ACTIONS: tuple[Action, ...] = (
    change,
    delete,
    add,
    append,
    remove,
    update_statement,
    delete_statement,
)
each_action = pytest.mark.parametrize("action", ACTIONS)


@each_action
def test_the_lock_is_needed(session: LockingSession, action: Action) -> None:
    held = hold(session, Budget, 2)
    kept: list[object] = []
    with refused(session, Budget, 1, sent_first=action is add):
        kept.append(action(session))
        session.flush()
    assert held


@each_action
def test_with_the_lock_it_goes_through(session: LockingSession, action: Action) -> None:
    held = hold(session, Budget, 1)
    with writes_sent(session) as sent:
        kept = action(session)
        session.commit()
    assert sent
    assert all((held, kept))


def move(session: LockingSession) -> object:
    (post := session.get_one(Post, 1)).code = "b"
    return post


def move_expired(session: LockingSession) -> object:
    post = session.get_one(Post, 1)
    session.expire(post)
    post.code = "b"
    return post


def move_by_collections(session: LockingSession) -> object:
    first, second = (session.get_one(Budget, ident) for ident in (1, 2))
    second.posts.append(first.posts.pop())
    return first, second


@pytest.mark.parametrize("action", [move, move_expired, move_by_collections])
def test_a_part_that_moves_needs_both(session: LockingSession, action: Action) -> None:
    for held, missing in ((1, 2), (2, 1)):
        kept = [hold(session, Budget, held), action(session)]
        with refused(session, Budget, missing, sent_first=missing == 2):
            session.flush()
        session.rollback()
        assert kept
    both = [hold(session, Budget, 1, 2), action(session)]
    session.commit()
    assert both


INSERTS = {
    "insert": sa.insert(Post).values(id=9, code="a"),
    "move": sa.update(Post).where(Post.id == 2).values(code="a"),
}


@pytest.mark.parametrize("statement", INSERTS.values(), ids=INSERTS)
def test_a_statement_that_adds_a_part_without_the_lock_is_refused(
    session: LockingSession, statement: sa.Insert | sa.Update
) -> None:
    held = hold(session, Budget, 2)
    with writes_sent(session) as sent, pytest.raises(UnlockedWrite):
        session.execute(statement)
    assert sent == []
    assert held


def test_a_new_document_with_its_parts_needs_no_lock(session: LockingSession) -> None:
    session.add(budget := Budget(id=9, code="c", posts=[Post(id=9)]))
    session.flush()
    budget.posts.append(Post(id=10))
    session.commit()
    assert not pending(session)
