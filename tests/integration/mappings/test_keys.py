"""Primary keys of every kind."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Dialect, ForeignKeyConstraint, MetaData, String
from sqlalchemy.orm import DeclarativeBase, relationship
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_doclock import document
from tests.integration.mappings.mapped_document import OWNED, MappedDocument
from tests.integration.mappings.under_the_lock import UnderTheLock

METADATA = MetaData()


class Code(TypeDecorator[str]):
    """A number in the database, ``"No. 12"`` in Python."""

    impl = sa.Integer
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value.removeprefix("No. "))

    def process_result_value(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else f"No. {value}"


_FIRST_DAY = dt.date(2000, 1, 1)

#: Enough that no two tests use the same number.
_NUMBERS = range(1, 2000)
Season: Any = enum.Enum("Season", [f"s{number:04}" for number in _NUMBERS])  # type: ignore[misc]
Rank: Any = enum.IntEnum("Rank", [f"r{number:04}" for number in _NUMBERS])  # type: ignore[misc]

KINDS: dict[str, tuple[Callable[[int], tuple[Any, ...]], tuple[TypeEngine[Any], ...]]] = {
    "composite": (lambda n: (n // 7, f"N{n:05}"), (sa.Integer(), String(20))),
    "natural": (lambda n: (f"order {n:05}",), (String(20),)),
    "UUID": (lambda n: (uuid.UUID(int=n << 100 | n),), (sa.Uuid(),)),
    "UUID as text": (lambda n: (str(uuid.UUID(int=n)),), (sa.Uuid(as_uuid=False),)),
    "enum": (
        lambda n: (Season[f"s{n:04}"],),
        (sa.Enum(Season, native_enum=False, length=8, create_constraint=False),),
    ),
    "ordered enum": (
        lambda n: (Rank[f"r{n:04}"],),
        (sa.Enum(Rank, native_enum=False, length=8, create_constraint=False),),
    ),
    "TypeDecorator": (lambda n: (f"No. {n}",), (Code(),)),
    "date": (lambda n: (_FIRST_DAY + dt.timedelta(days=n),), (sa.Date(),)),
    "Decimal": (lambda n: (decimal.Decimal(n) / 4,), (sa.Numeric(12, 2),)),
}


def _mapped(name: str) -> MappedDocument:
    identity, types = KINDS[name]
    prefix = "mp_key_" + name.replace(" ", "_").lower()
    names = [f"key_{position}" for position in range(len(types))]

    class Base(DeclarativeBase):
        metadata = METADATA

    class Order(Base):
        __table__ = sa.Table(
            prefix,
            METADATA,
            *(
                sa.Column(one, type_, primary_key=True, autoincrement=False)
                for one, type_ in zip(names, types, strict=True)
            ),
            sa.Column("total", sa.Integer),
            sa.Column("touched", sa.Integer),
        )
        lines = relationship(lambda: Line, cascade=OWNED, back_populates="order")

    class Line(Base):
        __table__ = sa.Table(
            f"{prefix}_line",
            METADATA,
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("value", sa.Integer),
            *(sa.Column(one, type_) for one, type_ in zip(names, types, strict=True)),
            ForeignKeyConstraint(names, [f"{prefix}.{one}" for one in names]),
        )
        order = relationship(Order, back_populates="lines")

    document(Order)
    return MappedDocument(name=f"{name} key", header=Order, line=Line, identity=identity)


class TestKeys(UnderTheLock):
    mappings = tuple(map(_mapped, KINDS))
