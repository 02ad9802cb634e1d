"""Fresh parts by every kind of relationship, key, hierarchy and depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.documents.hierarchies import (
    BitMark,
    Clause,
    Contract,
    Machine,
    Penalty,
    Room,
    Tier,
)
from tests.integration.documents.loading import Folder, Sheet
from tests.integration.documents.models import (
    Base,
    Category,
    Entry,
    Good,
    Job,
    Journal,
    Note,
    Split,
    Task,
)
from tests.integration.documents.relationships import (
    Album,
    Code,
    Cover,
    Issue,
    Label,
    Mark,
    Playlist,
    Sticker,
    Tag,
    Text,
    Track,
    album_tag,
    track_badge,
)
from tests.integration.documents.whole import whole

Run = Callable[..., None]
ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead


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
    """Return all that is loaded below, so that it stays in the session."""
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
