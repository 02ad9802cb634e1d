"""explain_lock() explains the lock of a class with any key, also where its table is empty."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import registry

from sa_doclock import LockNotSupported, LockOptions, explain_lock
from tests.support.databases import Database


class Season(enum.Enum):
    spring = 1


class Code(sa.TypeDecorator[str]):
    """A number in the database, ``"No. 12"`` in Python."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value.removeprefix("No. "))

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"No. {value}"


KEYS: dict[str, tuple[Any, Any]] = {
    "uuid": (sa.Uuid(), uuid.UUID(int=1)),
    "uuid as text": (sa.Uuid(as_uuid=False), str(uuid.UUID(int=1))),
    "enum": (sa.Enum(Season), Season.spring),
    "date": (sa.Date(), dt.date(2024, 1, 2)),
    "datetime": (sa.DateTime(), dt.datetime(2024, 1, 2)),  # noqa: DTZ001
    "Decimal": (sa.Numeric(5, 2), Decimal(1)),
    "text": (sa.String(5), "a"),
    "TypeDecorator": (Code(), "No. 1"),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_any_kind(database: Database, name: str) -> None:
    type_, value = KEYS[name]
    metadata = sa.MetaData()
    key = sa.Column("id", type_, primary_key=True, autoincrement=False)
    table = sa.Table(f"explained_{name.replace(' ', '_').lower()}", metadata, key)
    database.create(metadata)
    entity: Any = type("Explained", (), {})
    registry().map_imperatively(entity, table)
    engine = database.engine()
    if name == "TypeDecorator":
        with pytest.raises(LockNotSupported, match="add one row, and explain again"):
            explain_lock(engine, entity, LockOptions.ForUpdate)
        empty = None
    else:
        empty = explain_lock(engine, entity, LockOptions.ForUpdate)
    with engine.begin() as connection:
        connection.execute(table.insert().values(id=value))
    filled = explain_lock(engine, entity, LockOptions.ForUpdate)
    assert filled.statements
    # PostgreSQL looks a second time for a row that is not there.
    assert empty is None or set(empty.statements) == set(filled.statements)
