"""Later locks of a session: what came to it, or came back, since the lock before is fresh too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.documents.models import Line, Order
from tests.integration.documents.whole import whole

# SQLite's lock is one for the file: nobody else writes between two locks of a transaction.
pytestmark = pytest.mark.databases("postgresql", "mysql", "mariadb")

Run = Callable[..., None]
ForUpdate = LockOptions.ForUpdate


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[LockingSession]:
    """Read at READ COMMITTED before a lock too, where the lock may follow."""
    with LockingSession(engine.execution_options(isolation_level="READ COMMITTED")) as session:
        yield session


def move_here(elsewhere: Run) -> None:
    """Move line 3 from order 2 to order 1, and change it."""
    elsewhere(sa.update(Line).where(Line.id == 3).values(order_id=1, value=7))


def is_here(session: LockingSession, line: Line) -> bool:
    order = session.get_one_entity(Order, 1, ForUpdate)
    return line in order.lines and line.value == 7 and line.order is order


def lock_another(session: LockingSession) -> Any:
    """Lock a document that has nothing to do with the others."""
    session.add(Order(id=7, total=0))
    session.flush()
    return session.get_one_entity(Order, 7, ForUpdate)


def test_what_was_loaded_between_two_locks(session: LockingSession, elsewhere: Run) -> None:
    kept = lock_another(session)
    line = session.get_one(Line, 3)
    move_here(elsewhere)
    assert is_here(session, line)
    assert kept


def test_what_was_loaded_again_between_two_locks(session: LockingSession, elsewhere: Run) -> None:
    line = session.get_one(Line, 3)
    kept = lock_another(session)
    assert sa.inspect(line).expired
    assert line.value == 5
    move_here(elsewhere)
    assert is_here(session, line)
    assert kept


def test_a_collection_that_was_loaded_between(session: LockingSession, elsewhere: Run) -> None:
    order, other = session.get_one(Order, 1), session.get_one(Order, 2)
    before = whole(order)
    kept = lock_another(session)
    assert whole(order) == before
    line = other.lines[0]
    move_here(elsewhere)
    assert is_here(session, line)
    assert line not in session.get_one_entity(Order, 2, ForUpdate).lines
    assert kept


@pytest.mark.parametrize("locks", [1, 2])
def test_the_newest_object_was_taken_out_and_put_back(
    session: LockingSession, elsewhere: Run, locks: int
) -> None:
    first = session.get_one(Line, 1)
    for _ in range(locks):
        kept = session.get_one_entity(Order, 2, ForUpdate)
        session.expunge(first)
        line = session.get_one(Line, 2)
        session.add(first)
        session.add(line)
    elsewhere(sa.update(Line).where(Line.id.in_([1, 2])).values(value=77))
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert [one.value for one in order.lines] == [77, 77]
    assert kept


@pytest.mark.databases("postgresql")  # InnoDB keeps the lock of the row
def test_a_deletion_that_was_taken_back(session: LockingSession, elsewhere: Run) -> None:
    line = session.get_one(Line, 3)
    kept = lock_another(session)
    with session.unguarded():
        savepoint = session.begin_nested()
        session.delete(line)
        session.flush()
        savepoint.rollback()
    assert line.value == 5
    move_here(elsewhere)
    assert is_here(session, line)
    assert kept


def test_after_a_commit_that_expires_nothing(session: LockingSession, elsewhere: Run) -> None:
    session.expire_on_commit = False
    line = session.get_one_entity(Order, 2, ForUpdate).lines[0]
    kept = lock_another(session)
    session.commit()
    assert line.value == 5
    move_here(elsewhere)
    assert is_here(session, line)
    assert kept


@pytest.mark.databases("postgresql")  # InnoDB keeps the lock
def test_after_a_savepoint_that_gave_the_lock_up(session: LockingSession, elsewhere: Run) -> None:
    kept = lock_another(session)
    with session.begin_nested() as savepoint:
        line = session.get_one_entity(Order, 2, ForUpdate).lines[0]
        session.get_entity(Order, 99, ForUpdate)
        savepoint.rollback()
    move_here(elsewhere)
    assert is_here(session, line)
    assert kept


def test_pending_changes_that_were_flushed_since(session: LockingSession, elsewhere: Run) -> None:
    with LockingSession(session.get_bind(), guard="off") as unguarded:
        line = unguarded.get_one(Line, 3)
        line.value = 6
        move_here(elsewhere)
        with unguarded.no_autoflush:
            unguarded.get_entity(Order, 99, ForUpdate)
        unguarded.flush()
        order = unguarded.get_one_entity(Order, 1, ForUpdate)
        assert (line.order_id, line.value) == (1, 6)
        assert line in order.lines


def test_a_line_that_was_changed_unread_and_moved_by_another(
    session: LockingSession, elsewhere: Run
) -> None:
    line = session.get_one(Line, 3)
    kept = lock_another(session)
    line.value = 6
    assert "order_id" not in vars(line)
    move_here(elsewhere)
    with session.no_autoflush, pytest.raises(UnsavedChanges):
        session.get_entity(Order, 1, ForUpdate)
    assert kept


@pytest.mark.parametrize("way", ["key", "owner", "new"])
def test_a_line_that_the_program_moves_between_two_locks(session: LockingSession, way: str) -> None:
    line = session.get_one_entity(Order, 2, ForUpdate).lines[0]
    order = session.get_one(Order, 1)
    with session.no_autoflush:
        session.get_one_entity(Order, 2, ForUpdate)
        session.get_entity(Order, 99, ForUpdate)
        if way == "key":
            line.order_id = 1
        elif way == "owner":
            line.order = order
        else:
            session.add(Line(id=99, order_id=1, value=1))
        with pytest.raises(UnsavedChanges):
            session.get_entity(Order, 1, ForUpdate)


def test_the_info_of_the_session_is_the_programs(session: LockingSession, elsewhere: Run) -> None:
    """To clear it, as between two tests, forgets nothing of what a lock has to know."""
    line = session.get_one(Line, 3)
    kept = lock_another(session)
    assert session.info == {}
    session.info.clear()
    assert line.value == 5  # is loaded again
    move_here(elsewhere)
    assert is_here(session, line)
    assert kept
