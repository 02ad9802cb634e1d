"""Keys of another type than their column: MySQL would find other documents by them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
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


@pytest.mark.databases("mysql", "mariadb")
def test_several_rows_for_one_key_are_refused(session: LockingSession, documents: Database) -> None:
    metadata = sa.MetaData()
    table = sa.Table("gd_loose", metadata, sa.Column("id", AsGiven, primary_key=True))
    documents.create(metadata)
    entity: Any = type("Loose", (), {})
    registry().map_imperatively(entity, table)
    session.execute(table.insert(), [{"id": "a"}, {"id": "b"}])
    session.commit()
    with pytest.raises(LockMisuse, match=r"Loose 0 .* 2 rows"):
        session.get_entity(entity, 0, ForUpdate)
    assert not session.held_locks
