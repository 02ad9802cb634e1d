"""Headers whose key differs in Python from the foreign key of their lines, and not in the database.

Each kind has two headers with one line, mapped twice: declared, and not.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import CHAR, Column, Date, Integer, MetaData, Numeric, String, Table, Uuid
from sqlalchemy.orm import foreign, registry, relationship
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_doclock import document

METADATA = MetaData()
_OWNED = "all, delete-orphan"


class Code:
    """A value object; no text equals it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Code) -> bool:
        return self.text < other.text


class CodeType(TypeDecorator[Code]):
    """A Code, stored as its text."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: Code | None, dialect: object) -> str | None:
        return None if value is None else value.text

    def process_result_value(self, value: str | None, dialect: object) -> Code | None:
        return None if value is None else Code(value)


class Kind:
    """One kind of keys: two headers by their keys, and the same keys as their lines have them."""

    def __init__(
        self,
        name: str,
        types: Sequence[TypeEngine[Any]],
        keys: Sequence[Any],
        references: Sequence[Any],
        databases: Collection[str],
    ) -> None:
        self.name, self.keys, self.references, self.databases = name, keys, references, databases
        columns = (
            Column("id", types[0], primary_key=True, autoincrement=False),
            Column("total", Integer, default=0),
        )
        self.orders = Table(f"ek_{name}_order", METADATA, *columns)
        self.lines = Table(
            f"ek_{name}_line",
            METADATA,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("order_id", types[1]),
            Column("value", Integer, default=0),
        )
        self.Order, self.Line = self._mapped()
        document(self.Order)
        self.PlainOrder, self.PlainLine = self._mapped()

    def __repr__(self) -> str:
        return self.name

    def rows(self) -> Mapping[Table, list[dict[str, Any]]]:
        lines = enumerate(self.references, 1)
        return {
            self.orders: [{"id": key, "total": 10} for key in self.keys],
            self.lines: [{"id": one, "order_id": key, "value": 10} for one, key in lines],
        }

    def _mapped(self) -> tuple[Any, Any]:
        mapping = registry()
        order = type("Order", (), {"__init__": _set_attributes})
        line = type("Line", (), {"__init__": _set_attributes})
        condition = foreign(self.lines.c.order_id) == self.orders.c.id
        lines: Any = relationship(
            line,
            primaryjoin=condition,
            cascade=_OWNED,
            order_by=self.lines.c.id,
            back_populates="order",
            overlaps="lines,order",
        )
        mapping.map_imperatively(order, self.orders, properties={"lines": lines})
        back: Any = relationship(
            order, primaryjoin=condition, back_populates="lines", overlaps="lines,order"
        )
        mapping.map_imperatively(line, self.lines, properties={"order": back})
        return order, line


def _set_attributes(self: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(self, name, value)


_UUIDS = uuid.UUID(int=0xABCDEF), uuid.UUID(int=0xFEDCBA)
_TEXT = String(40).with_variant(String(40, collation="NOCASE"), "sqlite")
_TRIMMED = (
    String(10)
    .with_variant(String(10, collation="utf8mb4_general_ci"), "mysql", "mariadb")
    .with_variant(String(10, collation="RTRIM"), "sqlite")
)
_ALL = "postgresql", "mysql", "mariadb", "sqlite"
_CONVERTING = "mysql", "mariadb", "sqlite"

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        # PostgreSQL has such collations with ICU, and citext; the server of the tests has neither.
        Kind("case", (_TEXT, _TEXT), ("abc", "xyz"), ("ABC", "xYz"), _CONVERTING),
        Kind("blanks", (_TRIMMED, _TRIMMED), ("abc", "xyz"), ("abc  ", "xyz"), _CONVERTING),
        Kind(
            "padded",
            (CHAR(5), CHAR(8)),
            ("abc  ", "xyz  "),
            ("abc     ", "xyz     "),
            ("postgresql",),
        ),
        Kind("uuid", (Uuid(), Uuid(as_uuid=False)), _UUIDS, tuple(map(str, _UUIDS)), _ALL),
        Kind(
            "decimal",
            (Numeric(10, 2), Numeric(10, 2, asdecimal=False)),
            (Decimal("1.10"), Decimal("2.20")),
            (1.1, 2.2),
            _ALL,
        ),
        Kind(
            "decorator", (CodeType(), String(40)), (Code("abc"), Code("xyz")), ("abc", "xyz"), _ALL
        ),
        Kind("number", (Integer(), String(40)), (1, 2), ("1", "02"), ("mysql", "mariadb")),
        Kind(
            "date",
            (Date(), String(40)),
            (dt.date(2024, 1, 1), dt.date(2024, 1, 2)),
            ("2024-01-01", "2024-01-02"),
            _CONVERTING,
        ),
    )
}
