"""Keys of another type than their column: MySQL would find other documents by them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import MultipleResultsFound
from sqlalchemy.orm import registry
from sqlalchemy.types import TypeDecorator

from sa_doclock import LockingSession, LockMisuse, LockOptions
from tests.integration.guard.models import Country, Order, Voucher
from tests.integration.guard.steps import count
from tests.support.databases import Database

ForUpdate, None_ = LockOptions.ForUpdate, LockOptions.None_

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
    """A text that is bound as what it was given as."""

    impl = sa.String(40)
    cache_ok = True
    sort_key_function = str  # of texts and numbers beside each other


@pytest.fixture
def loose(session: LockingSession, documents: Database) -> Any:
    """Map a table with the texts a and b as keys, which MySQL finds both by 0."""
    metadata = sa.MetaData()
    table = sa.Table("gd_loose", metadata, sa.Column("id", AsGiven, primary_key=True))
    documents.create(metadata)
    entity: Any = type("Loose", (), {})
    registry().map_imperatively(entity, table)
    session.execute(table.insert(), [{"id": "a"}, {"id": "b"}])
    session.commit()
    return entity


NoLock, SharedRead = LockOptions.NoLock, LockOptions.SharedRead
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
