"""Keys of another type than their column: MySQL would find other documents."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import MultipleResultsFound
from sqlalchemy.orm import registry
from sqlalchemy.types import TypeDecorator

from sa_doclock import LockingSession, LockMisuse, LockOptions, UnlockedWrite
from tests.integration.guard.models import Budget, Country, Order, Post, Voucher
from tests.integration.guard.steps import count, hold, pending, refused, writes_sent
from tests.support.databases import Database

pytestmark = pytest.mark.each_value

ForUpdate, None_, NoLock, SharedRead = (
    LockOptions.ForUpdate,
    LockOptions.None_,
    LockOptions.NoLock,
    LockOptions.SharedRead,
)

READS: dict[str, Callable[[LockingSession, Any, Any, LockOptions], Any]] = {
    "get_entity": lambda s, entity, ident, lock: s.get_entity(entity, ident, lock),
    "get_entities": lambda s, entity, ident, lock: s.get_entities(entity, [ident], lock),
    "get_document": lambda s, entity, ident, lock: s.get_document(entity, ident, lock),
}
each_read = pytest.mark.parametrize("read", READS.values(), ids=READS)
each_lock = pytest.mark.parametrize("lock", [ForUpdate, None_], ids=["ForUpdate", "None_"])


@each_read
@each_lock
def test_a_number_is_no_text_that_begins_otherwise(
    session: LockingSession, read: Callable[..., Any], lock: LockOptions
) -> None:
    assert count(session, Country) == 2
    assert not read(session, Country, 0, lock)
    assert not session.held_locks


@each_read
def test_a_number_is_its_text(session: LockingSession, read: Callable[..., Any]) -> None:
    session.add(Country(code="42"))
    session.commit()
    assert read(session, Country, 42, ForUpdate)
    assert session.held_locks == {(Country, ("42",)): ForUpdate}


@each_read
@each_lock
@pytest.mark.parametrize(
    ("entity", "ident"),
    [
        (Country, 0.0),
        (Country, False),
        (Country, Decimal(0)),
        (Order, "1abc"),
        (Order, ""),
        (Order, 1.5),
        (Order, Decimal("1.5")),
        (Order, float("nan")),
        (Order, "inf"),
        (Voucher, ("2024abc", 1)),
    ],
)
def test_what_the_column_cannot_have_is_refused(
    session: LockingSession, read: Callable[..., Any], lock: LockOptions, entity: Any, ident: Any
) -> None:
    with pytest.raises(ValueError, match=entity.__name__):
        read(session, entity, ident, lock)
    assert not session.in_transaction()


@each_read
@pytest.mark.parametrize("ident", ["1", " 1 ", 1.0, Decimal(1), True])
def test_what_is_the_number_finds_it(
    session: LockingSession, read: Callable[..., Any], ident: Any
) -> None:
    assert read(session, Order, ident, ForUpdate)
    assert session.held_locks == {(Order, (1,)): ForUpdate}


class AsGiven(TypeDecorator[str]):
    """Binds a text without conversion."""

    impl = sa.String(40)
    cache_ok = True
    sort_key_function = str  # sorts texts and numbers together


@pytest.fixture
def loose(session: LockingSession, documents: Database) -> Any:
    """Map a table with the text keys a and b; MySQL finds both by 0."""
    metadata = sa.MetaData()
    table = sa.Table("gd_loose", metadata, sa.Column("id", AsGiven, primary_key=True))
    documents.create(metadata)
    entity: Any = type("Loose", (), {})
    registry().map_imperatively(entity, table)
    session.execute(table.insert(), [{"id": "a"}, {"id": "b"}])
    session.commit()
    return entity


SEVERAL: dict[str, Callable[[LockingSession, Any, LockOptions], Any]] = {
    "get_entity": lambda s, entity, lock: s.get_entity(entity, 0, lock),
    "get_one_entity": lambda s, entity, lock: s.get_one_entity(entity, 0, lock),
    "get_document": lambda s, entity, lock: s.get_document(entity, 0, lock),
    "get_entities": lambda s, entity, lock: s.get_entities(entity, [0], lock),
    "get_entities of a known one": lambda s, entity, lock: s.get_entities(entity, [0, "a"], lock),
    "get_entities of none": lambda s, entity, lock: s.get_entities(entity, [0, "c"], lock),
    "get_documents": lambda s, entity, lock: s.get_documents(entity, [0], lock),
}


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("method", SEVERAL.values(), ids=SEVERAL)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead], ids=str)
def test_several_rows_for_one_key_are_refused(
    session: LockingSession, loose: Any, method: Callable[..., Any], lock: LockOptions
) -> None:
    with pytest.raises(LockMisuse, match=r"Loose .* 2 rows for the key 0, such as 'a', 'b'"):
        method(session, loose, lock)
    assert not session.held_locks
    assert not session.in_transaction()


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("method", SEVERAL.values(), ids=SEVERAL)
@pytest.mark.parametrize("lock", [None_, NoLock], ids=str)
def test_several_rows_for_one_key_are_refused_without_a_lock(
    session: LockingSession, loose: Any, method: Callable[..., Any], lock: LockOptions
) -> None:
    with pytest.raises((LockMisuse, MultipleResultsFound)):
        method(session, loose, lock)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("lock", [None_, ForUpdate], ids=str)
def test_several_keys_for_one_row_are_none_of_these(
    session: LockingSession, loose: Any, lock: LockOptions
) -> None:
    found = session.get_entities(loose, ["A", "B", "a"], lock)
    assert [one.id for one in found] == ["a", "b"]


@pytest.mark.databases("mysql", "mariadb")
def test_several_rows_of_blocks(session: LockingSession, loose: Any) -> None:
    for block in (
        session.locked(loose, 0),
        session.locked_document(loose, 0),
        session.locked_documents(loose, [0]),
    ):
        with pytest.raises(LockMisuse, match="2 rows for the key 0"), block:
            pytest.fail("the block was entered")
    assert not session.in_transaction()


@pytest.mark.databases("mysql", "mariadb")
def test_several_rows_beside_a_held_one(session: LockingSession, loose: Any) -> None:
    held = session.get_one_entity(loose, "a", ForUpdate)
    with pytest.raises(LockMisuse, match="2 rows for the key 0"):
        session.get_entities(loose, ["a", 0], ForUpdate)
    assert held.id == "a"


# --------------------------------------------------------------------------------------------------
# Parts whose foreign key refers to a key of the header other than the primary key.
#
# Only the database knows which header that is: it can name a new owner once the row exists.

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
