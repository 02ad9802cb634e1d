"""Fresh parts for every kind of relationship, key, hierarchy and depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.documents.hierarchies import (
    Album,
    BitMark,
    Clause,
    Code,
    Contract,
    Cover,
    Issue,
    Label,
    Machine,
    Mark,
    Penalty,
    Playlist,
    Room,
    Sticker,
    Tag,
    Text,
    Tier,
    Track,
    album_tag,
    track_badge,
)
from tests.integration.documents.loading import Folder, Sheet
from tests.integration.documents.models import (
    Base,
    Category,
    Entry,
    Good,
    Job,
    Journal,
    Line,
    Note,
    Order,
    Split,
    Task,
)
from tests.integration.documents.rows import whole

pytestmark = pytest.mark.each_value

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


Run = Callable[..., None]


class Case(NamedTuple):
    entity: type[Any]
    ident: Any
    actions: list[sa.Executable]
    expected: Any


def change(entity: type[Base], ident: int, **values: object) -> sa.Executable:
    return sa.update(entity).where(sa.inspect(entity).primary_key[0] == ident).values(values)


def cells(table: sa.Table, **where: int) -> list[Any]:
    return [table.c[name] == value for name, value in where.items()]


CASES = {
    "composite keys": Case(
        Journal,
        (2024, 1),
        [
            sa.update(Entry).where(Entry.value == 20).values(value=21),
            change(Split, 1, value=5),
            change(Split, 4, position=2, number=1),
        ],
        (30, [(10, [5, 6]), (21, [20, 5])]),
    ),
    "joined inheritance": Case(
        Contract,
        1,
        [
            change(Clause, 2, value=21),
            change(Tier, 1, value=5),
            change(Tier, 3, penalty_id=1),
            change(Room, 1, value=31),
        ],
        (30, [(10, [5, 6, 5]), 21], [31]),
    ),
    "parts of the same name": Case(Machine, 2, [change(BitMark, 1, value=6)], (5, [(5, [6])])),
    "parts of parts": Case(
        Job,
        1,
        [
            change(Task, 4, value=14),
            change(Note, 2, value=15),
            change(Task, 6, parent_id=4),
            sa.insert(Task).values(id=9, parent_id=6, value=9),
        ],
        (
            30,
            [
                (10, [(11, [(12, [(14, [(21, [(9, [], [])], [21])], [15])], [])], [])], [10]),
                (20, [], []),
            ],
        ),
    ),
    "a tree": Case(
        Category,
        1,
        [
            change(Category, 4, total=34),
            change(Good, 2, value=35),
            change(Category, 5, parent_id=2),
        ],
        (30, [(31, [(32, [(34, [], [35])], []), (5, [], [5])], [])], [30]),
    ),
    "every kind of relationship": Case(
        Album,
        1,
        [
            change(Cover, 1, value=31),
            change(Label, 1, value=8),
            change(Sticker, 1, value=72),
            change(Tag, 2, value=22),
            sa.delete(album_tag).where(*cells(album_tag, album_id=1, tag_id=3)),
            change(Mark, 3, album_id=1),
            change(Text, 2, language="fr"),
            change(Code, 3, album_code="A"),
            change(Issue, 2, state="open"),
        ],
        (30, 31, (8, [72, 71]), [22, 1], {10, 20, 5}, {"en": 10, "fr": 20}, [10, 20, 5], [10, 20]),
    ),
    "one that is gone, one that has come": Case(
        Album,
        1,
        [
            sa.delete(Cover),
            sa.insert(Cover).values(id=9, album_id=1, value=9),
            sa.insert(Label).values(id=9, value=9),
            change(Album, 1, label_id=9, total=31),
        ],
        (31, 9, (9, []), [2, 3, 1], {10, 20}, {"en": 10, "de": 20}, [10, 20], [10]),
    ),
    "nothing is left": Case(
        Album,
        1,
        [
            change(Album, 1, label_id=None),
            sa.delete(album_tag),
            *(sa.delete(entity) for entity in (Cover, Mark, Text, Code, Issue)),
        ],
        (30, None, None, [], set(), {}, [], []),
    ),
    "many-to-many": Case(
        Playlist,
        1,
        [
            sa.update(track_badge)
            .where(*cells(track_badge, track_id=1, badge_id=1))
            .values(position=0),
            sa.delete(track_badge).where(*cells(track_badge, track_id=2, badge_id=2)),
            change(Track, 2, value=21),
        ],
        (30, [(10, [1, 2]), (21, [1])], [3, 2]),
    ),
    "not declared": Case(Folder, 1, [change(Sheet, 1, value=11)], (30, [11, 20])),
}

WAYS: dict[str, Callable[[LockingSession, Any, Any], Any]] = {
    "get_entity": lambda s, entity, ident: s.get_entity(entity, ident, ForUpdate),
    "get_document": lambda s, entity, ident: s.get_document(entity, ident, SharedRead),
    "get_entities": lambda s, entity, ident: s.get_entities(entity, [ident], SharedRead)[0],
    "a set": lambda s, entity, ident: next(
        one
        for one in s.scalars(s.entity_set(entity, ForUpdate))
        if sa.inspect(one).identity == (ident if isinstance(ident, tuple) else (ident,))
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_the_document_is_as_another_left_it(
    session: LockingSession, elsewhere: Run, way: str, name: str
) -> None:
    case = CASES[name]
    documents = session.scalars(sa.select(case.entity)).all()
    kept = [(document, whole(document), things(document)) for document in documents]
    session.commit()
    elsewhere(*case.actions)
    document = WAYS[way](session, case.entity, case.ident)
    assert document in documents
    assert whole(document) == case.expected
    assert kept


def things(thing: Any, depth: int = 6) -> list[Any]:
    """Return everything loaded below, to keep it in the session."""
    if depth == 0 or not isinstance(thing, Base):
        return []
    found: list[Any] = [thing]
    for value in list(vars(thing).values()):
        members = value.values() if isinstance(value, dict) else value
        for one in members if isinstance(value, (list, set, dict)) else [value]:
            found += things(one, depth - 1)
    return found


def test_columns_of_a_subclass_are_fresh(session: LockingSession, elsewhere: Run) -> None:
    penalty = session.get_one(Penalty, 1)
    session.commit()
    elsewhere(
        sa.update(Base.metadata.tables["dc_penalty"]).where(Penalty.id == 1).values(amount=101)
    )
    contract = session.get_entity(Contract, 1, ForUpdate)
    assert penalty.amount == 101
    assert contract


# --------------------------------------------------------------------------------------------------
# Later locks of a session also refresh objects that it gained since the previous lock.

# SQLite's lock covers the file: no other session writes between two locks of a transaction.


@pytest.fixture
def session_later(engine: sa.Engine) -> Iterator[LockingSession]:
    """Read at READ COMMITTED before the lock as well, if the lock may follow."""
    with LockingSession(engine.execution_options(isolation_level="READ COMMITTED")) as session:
        yield session


def move_here(elsewhere: Run) -> None:
    """Move line 3 from order 2 to order 1, and change it."""
    elsewhere(sa.update(Line).where(Line.id == 3).values(order_id=1, value=7))


def is_here(session: LockingSession, line: Line) -> bool:
    order = session.get_one_entity(Order, 1, ForUpdate)
    return line in order.lines and line.value == 7 and line.order is order


def lock_another(session: LockingSession) -> Any:
    """Lock an unrelated document."""
    session.add(Order(id=7, total=0))
    session.flush()
    return session.get_one_entity(Order, 7, ForUpdate)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_what_was_loaded_between_two_locks(session_later: LockingSession, elsewhere: Run) -> None:
    kept = lock_another(session_later)
    line = session_later.get_one(Line, 3)
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_what_was_loaded_again_between_two_locks(
    session_later: LockingSession, elsewhere: Run
) -> None:
    line = session_later.get_one(Line, 3)
    kept = lock_another(session_later)
    assert sa.inspect(line).expired
    assert line.value == 5
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_collection_that_was_loaded_between(
    session_later: LockingSession, elsewhere: Run
) -> None:
    order, other = session_later.get_one(Order, 1), session_later.get_one(Order, 2)
    before = whole(order)
    kept = lock_another(session_later)
    assert whole(order) == before
    line = other.lines[0]
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert line not in session_later.get_one_entity(Order, 2, ForUpdate).lines
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("locks", [1, 2])
def test_the_newest_object_was_taken_out_and_put_back(
    session_later: LockingSession, elsewhere: Run, locks: int
) -> None:
    first = session_later.get_one(Line, 1)
    for _ in range(locks):
        kept = session_later.get_one_entity(Order, 2, ForUpdate)
        session_later.expunge(first)
        line = session_later.get_one(Line, 2)
        session_later.add(first)
        session_later.add(line)
    elsewhere(sa.update(Line).where(Line.id.in_([1, 2])).values(value=77))
    order = session_later.get_one_entity(Order, 1, ForUpdate)
    assert [one.value for one in order.lines] == [77, 77]
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.databases("postgresql")  # InnoDB keeps the lock of the row
def test_a_deletion_that_was_taken_back(session_later: LockingSession, elsewhere: Run) -> None:
    line = session_later.get_one(Line, 3)
    kept = lock_another(session_later)
    with session_later.unguarded():
        savepoint = session_later.begin_nested()
        session_later.delete(line)
        session_later.flush()
        savepoint.rollback()
    assert line.value == 5
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_after_a_commit_that_expires_nothing(session_later: LockingSession, elsewhere: Run) -> None:
    session_later.expire_on_commit = False
    line = session_later.get_one_entity(Order, 2, ForUpdate).lines[0]
    kept = lock_another(session_later)
    session_later.commit()
    assert line.value == 5
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.databases("postgresql")  # InnoDB keeps the lock
def test_after_a_savepoint_that_gave_the_lock_up(
    session_later: LockingSession, elsewhere: Run
) -> None:
    kept = lock_another(session_later)
    with session_later.begin_nested() as savepoint:
        line = session_later.get_one_entity(Order, 2, ForUpdate).lines[0]
        session_later.get_entity(Order, 99, ForUpdate)
        savepoint.rollback()
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_pending_changes_that_were_flushed_since(
    session_later: LockingSession, elsewhere: Run
) -> None:
    with LockingSession(session_later.get_bind(), guard="off") as unguarded:
        line = unguarded.get_one(Line, 3)
        line.value = 6
        move_here(elsewhere)
        with unguarded.no_autoflush:
            unguarded.get_entity(Order, 99, ForUpdate)
        unguarded.flush()
        order = unguarded.get_one_entity(Order, 1, ForUpdate)
        assert (line.order_id, line.value) == (1, 6)
        assert line in order.lines


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_line_that_was_changed_unread_and_moved_by_another(
    session_later: LockingSession, elsewhere: Run
) -> None:
    line = session_later.get_one(Line, 3)
    kept = lock_another(session_later)
    line.value = 6
    assert "order_id" not in vars(line)
    move_here(elsewhere)
    with session_later.no_autoflush, pytest.raises(UnsavedChanges):
        session_later.get_entity(Order, 1, ForUpdate)
    assert kept


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("way", ["key", "owner", "new"])
def test_a_line_that_the_program_moves_between_two_locks(
    session_later: LockingSession, way: str
) -> None:
    line = session_later.get_one_entity(Order, 2, ForUpdate).lines[0]
    order = session_later.get_one(Order, 1)
    with session_later.no_autoflush:
        session_later.get_one_entity(Order, 2, ForUpdate)
        session_later.get_entity(Order, 99, ForUpdate)
        if way == "key":
            line.order_id = 1
        elif way == "owner":
            line.order = order
        else:
            session_later.add(Line(id=99, order_id=1, value=1))
        with pytest.raises(UnsavedChanges):
            session_later.get_entity(Order, 1, ForUpdate)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_the_info_of_the_session_is_the_programs(
    session_later: LockingSession, elsewhere: Run
) -> None:
    """Clearing it, as between two tests, loses nothing that a lock needs."""
    line = session_later.get_one(Line, 3)
    kept = lock_another(session_later)
    assert session_later.info == {}
    session_later.info.clear()
    assert line.value == 5  # loaded again
    move_here(elsewhere)
    assert is_here(session_later, line)
    assert kept
