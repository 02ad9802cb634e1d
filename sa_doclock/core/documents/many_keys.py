"""Many keys in one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, false, or_
from sqlalchemy.types import TypeEngine

from ...keys import Identity

MAX_PARAMETERS = 900  # few enough for every database


def chunks(
    keys: Sequence[Identity], parameters: int = MAX_PARAMETERS
) -> Iterator[Sequence[Identity]]:
    """Yield the keys in parts, none with more parameters than a statement can have."""
    size = max(1, parameters // len(keys[0])) if keys else 1
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def key_in(
    columns: Sequence[ColumnElement[Any]],
    keys: Sequence[Sequence[Any]],
    parameter_type: Callable[[TypeEngine[Any]], TypeEngine[Any]] | None = None,
) -> ColumnElement[bool]:
    """Return ``key IN (...)``, also for composite keys, for which SQL Server has no row values.

    :param parameter_type: returns the type to send a value by, for the type of its column.
    """
    types = [column.type for column in columns]
    if parameter_type is not None:
        types = list(map(parameter_type, types))
    if len(columns) == 1:
        values = [key[0] for key in keys]
        if types[0] is columns[0].type:
            return columns[0].in_(values)
        return columns[0].in_(_parameter(values, types[0], expanding=True))
    equal = (
        and_(
            *(
                column == (value if type_ is column.type else _parameter(value, type_))
                for column, value, type_ in zip(columns, key, types, strict=True)
            )
        )
        for key in keys
    )
    return or_(false(), *equal)


def _parameter(value: Any, type_: TypeEngine[Any], *, expanding: bool = False) -> Any:
    # By a name of its own: SQLAlchemy's cache does not tell a type from its variants.
    return bindparam("doclock_key", value, type_=type_, unique=True, expanding=expanding)
