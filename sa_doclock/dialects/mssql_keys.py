"""The values of keys as values of their columns, which SQL Server can look up in an index.

"Data type precedence": of two types in a comparison, the one of lower precedence is converted.  If
that is the column, as varchar is for an nvarchar value, its index may not be sought: with a SQL_
collation the whole index is scanned, and FORCESEEK is error 8622; with a Windows collation a range
is sought, which waits for rows that were not requested.  The driver chooses the type: nvarchar for
an Enum or a Uuid stored as CHAR, whatever the column is.
https://learn.microsoft.com/sql/t-sql/data-types/data-type-precedence-transact-sql
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, TypeDecorator, cast
from sqlalchemy.types import String, TypeEngine

# The greatest length: a longer value must find no row, not the row of its first characters.
_LONGEST: Mapping[str, int] = {
    "VARCHAR": 8_000,
    "CHAR": 8_000,
    "NVARCHAR": 4_000,
    "NCHAR": 4_000,
    "VARBINARY": 8_000,
    "BINARY": 8_000,
}
# As in the mapping.  A DATETIME rounds to 1/300 s, a datetime2 value does not.
_AS_DECLARED = frozenset(
    [
        "DATETIME",
        "SMALLDATETIME",
        "DATE",
        "TIME",
        "DATETIME2",
        "DATETIMEOFFSET",
        "DECIMAL",
        "NUMERIC",
        "MONEY",
        "SMALLMONEY",
        "FLOAT",
        "REAL",
        "DOUBLE",
        "UNIQUEIDENTIFIER",
        "BIT",
    ]
)


class StoredKey(TypeDecorator[Any]):
    """The type of a key whose values are cast to the type of its column."""

    impl: Any = String
    cache_ok = True

    def __init__(self, of: TypeEngine[Any]) -> None:
        super().__init__()
        self.of = of
        self.impl: Any = of

    def bind_expression(self, bindparam: Any) -> ColumnElement[Any] | None:
        own = super().bind_expression(bindparam)
        value: Any = bindparam if own is None else own
        target = _target_of(self.of)
        return value if target is None else cast(value, target)


def _target_of(type_: TypeEngine[Any]) -> TypeEngine[Any] | None:
    """Return the type for CAST, or None if there is none, or the type is unknown."""
    from sqlalchemy.dialects import mssql  # noqa: PLC0415  # loaded where it is used

    # As SQLAlchemy's is for SQL Server 2012 and later.
    dialect = mssql.dialect(deprecate_large_types=True)  # type: ignore[no-untyped-call]
    name = type_.compile(dialect=dialect).partition("(")[0].split()[0].upper()
    if name in _LONGEST:
        found: TypeEngine[Any] = getattr(mssql, name)(_LONGEST[name])
        return found
    return type_ if name in _AS_DECLARED else None
