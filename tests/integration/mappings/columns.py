"""Columns and classes that many models have."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Integer, func, select
from sqlalchemy.orm import MappedColumn, column_property, mapped_column


def key(*arguments: Any) -> MappedColumn[int]:
    """Return the column of a key that the tests choose."""
    return mapped_column(Integer, *arguments, primary_key=True, autoincrement=False)


def reference(column: str) -> MappedColumn[int]:
    """Return the column of a foreign key."""
    return mapped_column(ForeignKey(column), nullable=False)


def number(*, nullable: bool = False) -> MappedColumn[int]:
    """Return a column of numbers."""
    return mapped_column(Integer, nullable=nullable)


def total_of(value: Any, where: Any, **options: Any) -> Any:
    """Return a column that adds up rows of another table."""
    total = select(func.coalesce(func.sum(value), 0)).where(where)
    return column_property(total.scalar_subquery(), **options)


def detail_class(base: Any, table: str, header: str, column: str = "id", **attributes: Any) -> Any:
    """Return a class of details that refer to the header's table by ``header_id``."""
    columns = {"id": key(), "header_id": reference(f"{header}.{column}"), "value": number()}
    return type(table, (base,), {"__tablename__": table, **columns, **attributes})


def header_class(base: Any, table: str, **attributes: Any) -> Any:
    """Return a class of headers."""
    columns = {"id": key(), "total": number(), "touched": number()}
    return type(table, (base,), {"__tablename__": table, **columns, **attributes})
