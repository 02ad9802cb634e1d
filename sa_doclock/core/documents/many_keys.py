"""Many keys in one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, or_

from ..lock_info import Identity

MAX_PARAMETERS = 900  # few enough for every database


def chunks(
    keys: Sequence[Identity], parameters: int = MAX_PARAMETERS
) -> Iterator[Sequence[Identity]]:
    """Yield the keys in parts, none with more parameters than a statement can have."""
    size = max(1, parameters // len(keys[0])) if keys else 1
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def key_in(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Sequence[Any]]
) -> ColumnElement[bool]:
    """Return ``key IN (...)``, also for composite keys, for which SQL Server has no row values."""
    if len(columns) == 1:
        return columns[0].in_([key[0] for key in keys])
    equal = (and_(*(c == v for c, v in zip(columns, key, strict=True))) for key in keys)
    return or_(false(), *equal)
