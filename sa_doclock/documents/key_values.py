"""The values of a primary key, of the type that its column has.

MySQL compares a text with a number as numbers: 0 is every text without a leading digit, and
``"1abc"`` is 1.  So what the program gives is made a value of the column's type, or refused.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from numbers import Number
from typing import Any

from sqlalchemy import Enum, Integer, Numeric, String
from sqlalchemy.types import TypeEngine


def python_type(column_type: TypeEngine[Any]) -> type[Any] | None:
    """Return int or str, for a column with such values; None for any other."""
    if isinstance(column_type, Integer):
        return int
    return str if _is_text(column_type) else None


def key_value(column_type: TypeEngine[Any], value: Any) -> Any:
    """Return the value as the column has it.

    :raises ValueError: the column has no such values.
    """
    if isinstance(column_type, Integer):
        return _integer(value) if isinstance(value, (str, float, Decimal)) else value
    if isinstance(column_type, Numeric) and isinstance(value, str):
        return _decimal(value)
    if _is_text(column_type) and isinstance(value, Number):
        return _text(value)
    return value


def _is_text(column_type: TypeEngine[Any]) -> bool:
    return isinstance(column_type, String) and not isinstance(column_type, Enum)


def _integer(value: str | float | Decimal) -> int:
    number = value
    if isinstance(value, str):
        number = _decimal(value)
    try:
        found = int(number)
    except (ValueError, OverflowError):  # NaN, infinite
        raise ValueError(f"{value!r} is no integer") from None
    if found != number:
        raise ValueError(f"{value!r} is no integer")
    return found


def _decimal(value: str) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise ValueError(f"{value!r} is no number") from None


def _text(value: Number) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{value!r} is no text; which text it is meant to be is not known")
