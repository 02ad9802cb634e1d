"""``@document(version=True)``: a flush that changes any part raises the version, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, update
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column, sessionmaker

from sa_doclock import LockingSession, LockOptions, StaleDocument, UnlockedWrite, document
from tests.integration.versions.models import (
    KINDS,
    Cleaning,
    Machine,
    Noted,
    Numbered,
    NumberedLine,
    Remark,
    Repair,
    Room,
    Task,
)

ForUpdate = LockOptions.ForUpdate
each_kind = pytest.mark.parametrize(("header", "line"), KINDS)


def _change(document: Any, _: Any) -> None:
    document.lines[0].value = 11


def _add(document: Any, line: Any) -> None:
    document.lines.append(line(id=3, value=5))


def _delete(document: Any, _: Any) -> None:
    document.lines.pop()


def _change_several(document: Any, _: Any) -> None:
    document.lines.pop()
    document.lines[0].value = document.total = 12


CHANGES = (_change, _add, _delete, _change_several)
each_change = pytest.mark.parametrize("change", CHANGES)


@each_kind
@each_change
def test_a_change_of_a_part_is_seen_by_who_has_the_old_version(
    session: LockingSession, other: LockingSession, header: Any, line: Any, change: Any
) -> None:
    seen = session.get_one(header, 1).version
    session.rollback()
    with other.locked_document(header, 1, version=seen) as document:
        change(document, line)
    with pytest.raises(StaleDocument):
        session.get_entity(header, 1, ForUpdate, version=seen)


@each_change
def test_it_is_raised_once_for_each_flush(session: LockingSession, change: Any) -> None:
    with session.locked_document(Numbered, 1) as found:
        change(found, NumberedLine)
        session.flush()
        assert found.version == 2
        found.lines[0].value = 77
    assert session.get_one(Numbered, 1).version == 3


def test_a_flush_that_changes_nothing_does_not_raise_it(session: LockingSession) -> None:
    with session.locked_document(Numbered, 1) as found:
        found.lines[0].value = found.lines[0].value
    assert session.get_one(Numbered, 1).version == 1


def test_a_part_that_moves_raises_both(session: LockingSession) -> None:
    with session.locked_documents(Numbered, [1, 2]) as [one, two]:
        two.lines.append(one.lines.pop())
    assert [session.get_one(Numbered, ident).version for ident in (1, 2)] == [2, 2]


def test_another_document_keeps_its_own(session: LockingSession) -> None:
    with session.locked_document(Numbered, 1) as found:
        found.lines[0].value = 77
    assert session.get_one(Numbered, 2).version == 1


def test_a_version_that_the_program_sets_stays(session: LockingSession) -> None:
    with session.locked_document(Numbered, 1) as found:
        found.version = 40
        found.lines[0].value = 77
    assert session.get_one(Numbered, 1).version == 40


def test_without_the_guard_too(engine: sa.Engine) -> None:
    with LockingSession(engine, guard="off") as session:
        session.get_one(NumberedLine, 1).value = 77  # its header is not in the session
        session.commit()
        assert session.get_one(Numbered, 1).version == 2


def test_a_header_that_is_new_or_deleted_is_left_alone(
    session: LockingSession, engine: sa.Engine
) -> None:
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement.split(maxsplit=1)[0])

    sa.event.listen(engine, "before_cursor_execute", note)
    session.add(Numbered(id=3, lines=[NumberedLine(id=5, value=1)]))
    session.flush()
    assert "SELECT" not in sent  # another session may have inserted it meanwhile
    sa.event.remove(engine, "before_cursor_execute", note)
    session.commit()
    assert session.get_one(Numbered, 3).version == 1
    with session.locked_document(Numbered, 3) as found:
        session.delete(found)
    assert session.get(Numbered, 3) is None


class Other(DeclarativeBase):
    """The base of a class without documents."""


class PlainLine(Other):
    __table__ = NumberedLine.__table__


def test_a_part_of_a_second_class_raises_it(session: LockingSession) -> None:
    with session.locked_document(Numbered, 1):
        line: Any = session.get_one(PlainLine, 1)
        line.value = 77
        session.flush()
        session.delete(session.get_one(PlainLine, 2))
    assert session.get_one(Numbered, 1).version == 3


class PlainHeader(Other):
    """It has the version too, and raises it itself."""

    __table__ = Numbered.__table__
    __mapper_args__ = {"version_id_col": Numbered.__table__.c.version}  # noqa: RUF012


@pytest.mark.parametrize("deletes", [False, True])
def test_a_header_that_a_second_class_writes_is_raised_once(
    session: LockingSession, *, deletes: bool
) -> None:
    session.get_one_entity(Numbered, 2, LockOptions.ForUpdate)
    plain: Any = session.get_one(PlainHeader, 2)
    if deletes:
        session.delete(plain)
    else:
        plain.total += 1
    session.flush()
    session.expire_all()
    found = session.get(Numbered, 2)
    assert found is None if deletes else found is not None and found.version == 2


def _change_one(session: LockingSession) -> None:
    session.get_one(NumberedLine, 1).value = 77


def _add_one(session: LockingSession) -> None:
    session.add(NumberedLine(id=9, header_id=1, value=5))


def _delete_one(session: LockingSession) -> None:
    session.delete(session.get_one(NumberedLine, 2))


@pytest.mark.parametrize("action", [_change_one, _add_one, _delete_one])
@pytest.mark.parametrize("listens", ["of its class", "of the session", "of the session, late"])
def test_a_part_that_a_listener_writes_raises_it_in_the_same_flush(
    engine: sa.Engine, action: Any, listens: str
) -> None:
    class Listened(LockingSession):
        pass

    with Listened(engine) as session:
        target: Any = Listened if listens == "of its class" else session
        if listens == "of the session, late":
            session.add(Numbered(id=4))
            session.commit()
        event.listen(target, "before_flush", lambda *_: action(session), once=True)
        with session.locked_document(Numbered, 1) as found:
            session.add(Numbered(id=3))
            session.flush()
            assert found.version == 2
        assert session.get_one(Numbered, 1).version == 2


def test_a_class_without_a_version_cannot_be_declared_so() -> None:
    class Base(DeclarativeBase):
        pass

    @document(version=True)
    class Plain(Base):
        __tablename__ = "vs_plain"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ArgumentError, match="Plain: version=True needs a column"):
        configure_mappers()


# --------------------------------------------------------------------------------------------------
# A part that its relationship selects by a discriminator: its table has rows of other owners too.

Action = Callable[[LockingSession], None]


@pytest.fixture
def session_discriminators(session: LockingSession) -> LockingSession:
    """Return a session with Noted 1, its remark 1, and remark 2 of a customer 1."""
    with session.unguarded():
        session.add(Noted(id=1))
        session.add_all(
            Remark(id=ident, owner_id=1, owner_kind=kind)
            for ident, kind in ((1, "noted"), (2, "customer"))
        )
        session.commit()
    return session


def change(ident: int, **values: object) -> Action:
    def action(session: LockingSession) -> None:
        remark = session.get_one(Remark, ident)
        for name, value in values.items():
            setattr(remark, name, value)

    return action


def add(kind: str) -> Action:
    return lambda session: session.add(Remark(id=9, owner_id=1, owner_kind=kind))


def delete(ident: int) -> Action:
    return lambda session: session.delete(session.get_one(Remark, ident))


OTHERS = [change(2, text="x"), add("customer"), delete(2)]
OWN = [
    change(1, text="x"),
    add("noted"),
    delete(1),
    change(2, owner_kind="noted"),
    change(1, owner_kind="customer"),
]


@pytest.mark.parametrize("action", OTHERS)
def test_a_row_of_another_owner_is_no_part(
    session_discriminators: LockingSession, action: Action
) -> None:
    action(session_discriminators)
    session_discriminators.commit()
    assert session_discriminators.get_one(Noted, 1).version == 1


@pytest.mark.parametrize("action", OWN)
def test_a_row_that_is_comes_or_was_a_part_is_one(
    session_discriminators: LockingSession, factory: sessionmaker[LockingSession], action: Action
) -> None:
    action(session_discriminators)
    with pytest.raises(UnlockedWrite, match="Noted 1"):
        session_discriminators.flush()
    session_discriminators.rollback()
    with factory() as holder:
        with holder.locked_document(Noted, 1):
            action(holder)
        assert holder.get_one(Noted, 1).version == 2


def test_what_it_was_is_asked_where_it_is_not_loaded(
    session_discriminators: LockingSession,
) -> None:
    found = session_discriminators.get_one(Remark, 1)
    session_discriminators.expire(found)
    found.owner_kind = "customer"
    with pytest.raises(UnlockedWrite, match="Noted 1"):
        session_discriminators.flush()


def test_what_a_collation_may_take_for_the_same_is_a_part(
    session_discriminators: LockingSession,
) -> None:
    session_discriminators.add(Remark(id=9, owner_id=1, owner_kind="N\u00f3ted "))
    with pytest.raises(UnlockedWrite, match="Noted 1"):
        session_discriminators.flush()


# --------------------------------------------------------------------------------------------------
# A row that changes its class raises the versions of its old document and of its new one.


@pytest.fixture
def session_new_kinds(session: LockingSession) -> LockingSession:
    """Return a session with machine 1, rooms 1 and 2, and tasks with keys of several."""
    with session.unguarded():
        session.add_all([Machine(id=1), Room(id=1), Room(id=2)])
        session.flush()
        session.add(Repair(id=1, machine_id=1, room_id=1))
        session.add(Task(id=2, room_id=1))
        session.commit()
        # As after an earlier change of the kind: the key is still there.
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


def change_new_kinds(
    session: LockingSession, entity: type[Any], ident: int, **values: object
) -> None:
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


@pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")
def test_from_one_document_to_another(session_new_kinds: LockingSession) -> None:
    machine, first, second = before(session_new_kinds)
    change_new_kinds(session_new_kinds, Repair, 1, kind="cleaning")
    assert versions(session_new_kinds) == (machine + 1, first + 1, second)


@pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")
def test_it_becomes_a_part(session_new_kinds: LockingSession) -> None:
    machine, first, second = before(session_new_kinds)
    change_new_kinds(session_new_kinds, Task, 2, kind="cleaning")
    assert versions(session_new_kinds) == (machine, first + 1, second)


@pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")
def test_by_a_key_that_is_changed_with_it(session_new_kinds: LockingSession) -> None:
    machine, first, second = before(session_new_kinds)
    change_new_kinds(session_new_kinds, Task, 2, kind="cleaning", room_id=2)
    assert versions(session_new_kinds) == (machine, first, second + 1)


@pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")
def test_by_a_key_that_its_class_does_not_map(session_new_kinds: LockingSession) -> None:
    machine, first, second = before(session_new_kinds)
    change_new_kinds(session_new_kinds, Task, 3, kind="repair")
    assert versions(session_new_kinds) == (machine + 1, first, second)


@pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")
def test_it_is_no_part_any_more(session_new_kinds: LockingSession) -> None:
    machine, first, second = before(session_new_kinds)
    change_new_kinds(session_new_kinds, Repair, 1, kind="task")
    assert versions(session_new_kinds) == (machine + 1, first, second)


@pytest.mark.filterwarnings("ignore:Flushing object .* with incompatible polymorphic")
def test_a_kind_of_no_document(session_new_kinds: LockingSession) -> None:
    expected = before(session_new_kinds)
    change_new_kinds(session_new_kinds, Task, 2, text="x", room_id=2)
    assert versions(session_new_kinds) == expected
    assert session_new_kinds.get_one(Task, 2).text == "x"
    assert not session_new_kinds.query(Cleaning).all()


def test_a_part_whose_order_only_sql_knows_is_refused(session: LockingSession) -> None:
    """No version of that order could be raised: the expression has no value before the write."""
    held = session.get_entity(Numbered, 1, ForUpdate)
    session.add(NumberedLine(id=9, value=5, header_id=sa.literal(1) + 0))
    with pytest.raises(UnlockedWrite):
        session.flush()
    assert held
