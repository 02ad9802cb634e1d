"""A row that becomes one of another class raises the versions of the document that it leaves, and of its new one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from sa_doclock import LockingSession, LockOptions
from tests.integration.versions.models import Cleaning, Machine, Repair, Room, Task

ForUpdate = LockOptions.ForUpdate
pytestmark = pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")


@pytest.fixture
def session(session: LockingSession) -> LockingSession:
    """Return a session with machine 1, rooms 1 and 2, and tasks that belong to several by their keys."""
    with session.unguarded():
        session.add_all([Machine(id=1), Room(id=1), Room(id=2)])
        session.flush()
        session.add(Repair(id=1, machine_id=1, room_id=1))
        session.add(Task(id=2, room_id=1))
        session.commit()
        # As a program leaves it that has changed the kind before: the key is still there.
        session.add(Repair(id=3, machine_id=1))
        session.flush()
        session.execute(update(Task).where(Task.id == 3).values(kind="task"))
        session.commit()
        session.expunge_all()
    return session


def versions(session: LockingSession) -> tuple[int, int, int]:
    """Return the versions of machine 1, and of rooms 1 and 2."""
    session.rollback()
    rooms = [session.get_one(Room, ident).version for ident in (1, 2)]
    return session.get_one(Machine, 1).version, rooms[0], rooms[1]


def change(session: LockingSession, entity: type[Any], ident: int, **values: object) -> None:
    """Change a task under the locks of all documents."""
    session.get_entity(Machine, 1, ForUpdate)
    session.get_entities(Room, [1, 2], ForUpdate)
    task = session.get_one(entity, ident)
    for name, value in values.items():
        setattr(task, name, value)
    session.commit()


def before(session: LockingSession) -> tuple[int, int, int]:
    found = versions(session)
    session.rollback()
    return found


def test_from_one_document_to_another(session: LockingSession) -> None:
    machine, first, second = before(session)
    change(session, Repair, 1, kind="cleaning")
    assert versions(session) == (machine + 1, first + 1, second)


def test_it_becomes_a_part(session: LockingSession) -> None:
    machine, first, second = before(session)
    change(session, Task, 2, kind="cleaning")
    assert versions(session) == (machine, first + 1, second)


def test_by_a_key_that_is_changed_with_it(session: LockingSession) -> None:
    machine, first, second = before(session)
    change(session, Task, 2, kind="cleaning", room_id=2)
    assert versions(session) == (machine, first, second + 1)


def test_by_a_key_that_its_class_does_not_map(session: LockingSession) -> None:
    machine, first, second = before(session)
    change(session, Task, 3, kind="repair")
    assert versions(session) == (machine + 1, first, second)


def test_it_is_no_part_any_more(session: LockingSession) -> None:
    machine, first, second = before(session)
    change(session, Repair, 1, kind="task")
    assert versions(session) == (machine + 1, first, second)


def test_a_kind_of_no_document(session: LockingSession) -> None:
    expected = before(session)
    change(session, Task, 2, text="x", room_id=2)
    assert versions(session) == expected
    assert session.get_one(Task, 2).text == "x"
    assert not session.query(Cleaning).all()
