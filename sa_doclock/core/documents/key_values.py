"""The values of a primary key, in the form in which rows have them: one row has one key in Python.

MySQL compares a text with a number as numbers: 0 equals every text without a leading digit, and
``"1abc"`` equals 1.  So the program's value is converted to the column's type, or refused, before
anything is sent.  It may come from a URL: the length of a text and the exponent of a number are
checked first, so that no conversion takes long.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Enum, Float, Uuid, inspect
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from ...keys import is_storable, key_text
from ...sqlalchemy_internals import variants_of

ColumnType = TypeEngine[Any]
Convert = Callable[[Any, Any], Any]  # the column's type, and a value
T = TypeVar("T", date, datetime, time)

INTEGER_LIMIT: Final = 1 << 63
"""A signed column has integers below this, down to its negative: SQLite's have 64 bits."""

_DIGITS: Final = 1_000  # of a number, before and after its point
_BITS: Final = 3_321  # of an integer with so many digits
# Patterns as text: Python compiles each at its first use, and most programs use none.
_NUMBER: Final = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?\s*"
_HEX: Final = r"[0-9a-fA-F]{32}"
_LONGEST_UUID: Final = len("urn:uuid:{00000000-0000-0000-0000-000000000000}")

# The formats that fromisoformat() accepts in every version of Python.
_DATE: Final = r"\d{4}-\d\d-\d\d"
_TIME: Final = r"\d\d:\d\d(:\d\d(\.\d{3}(\d{3})?)?)?([+-]\d\d:\d\d)?"
_DATETIME: Final = rf"{_DATE}([ T]{_TIME})?"


def plain_type(column_type: ColumnType) -> type[Any] | None:
    """Return int or str for a column with such values, or None."""
    found = _conversion_of(column_type)
    return int if found is _integer else str if found is _text else None


def key_value(column_type: ColumnType, value: Any) -> Any:
    """Return the value as rows of the column have it.

    Only a TypeDecorator knows its values, and so does a type without a Python type, or with another
    for some database: these get the value unchanged.

    :raises ValueError: the column cannot have this value.
    :raises TypeError: it is an object, an SQL expression or a list, or of a type that does not
        determine the value.
    """
    return None if value is None else _conversion_of(column_type)(column_type, value)


def converts(column_type: ColumnType) -> bool:
    """Return whether the values of this type are known, and so converted."""
    return _conversion_of(column_type) is not _as_given


def _conversion_of(column_type: ColumnType) -> Convert:
    if isinstance(column_type, Enum):
        return _member
    if isinstance(column_type, Uuid):
        return _uuid
    types = {_type_of_values(variant) for variant in (column_type, *variants_of(column_type))}
    same_everywhere = len(types) == 1
    return _CONVERSIONS.get(types.pop(), _as_given) if same_everywhere else _as_given


def _type_of_values(column_type: ColumnType) -> type[Any] | None:
    if not isinstance(column_type, TypeDecorator):
        with suppress(NotImplementedError):
            return column_type.python_type
    return None


def _as_given(_: ColumnType, value: Any) -> Any:
    if inspect(value, raiseerr=False) is not None:  # an object, a class, an SQL expression
        raise TypeError(f"{key_text(value)} is not a primary key value")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError(f"{key_text(value)} is not a primary key value")
    try:
        hash(value)
    except TypeError:
        raise TypeError(f"{key_text(value)} is not a primary key value") from None
    return value


def _integer(column_type: ColumnType, value: Any) -> int:
    found: int | None
    if isinstance(value, str):
        found = _whole(_decimal_in(value))
    elif isinstance(value, (float, Decimal)):
        found = _whole(Decimal(value))
    elif hasattr(value, "__index__"):
        found = operator.index(value)
    else:
        raise TypeError(f"{key_text(value)} is not an integer")
    types = (column_type, *variants_of(column_type))
    limit = INTEGER_LIMIT << any(
        getattr(variant, "unsigned", False) for variant in types
    )  # of MySQL
    if found is None or not -INTEGER_LIMIT <= found < limit:
        raise ValueError(f"{key_text(value)} is not an integer that the column can store")
    return found


def _whole(number: Decimal) -> int | None:
    """Return the number as an integer of at most 1,000 digits, or None."""
    if not number.is_finite() or number.adjusted() >= _DIGITS:
        return None if number else 0  # int() would build all the zeros of 1E+300000
    found = int(number)
    return found if found == number else None


def _decimal(column_type: ColumnType, value: Any) -> Decimal:
    number = _number(value)
    if not number:
        return Decimal(0)
    precision = scale = None
    if not isinstance(column_type, Float):  # a Float's precision counts bits of the mantissa
        precision, scale = (getattr(column_type, name, None) for name in ("precision", "scale"))
    before = _DIGITS if precision is None else precision - (scale or 0)
    if not _has_digits(number, before, _DIGITS if scale is None else scale):
        raise ValueError(f"{key_text(value)} is not a number that the column can store")
    return number


def _has_digits(number: Decimal, before: int, behind: int) -> bool:
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or number.adjusted() >= before:  # a text for NaN, infinity
        return False
    too_many = -exponent - behind
    return too_many <= 0 or not any(digits[-too_many:])


def _float(_: ColumnType, value: Any) -> float:
    number = _number(value)
    found = float(number)
    if (
        not math.isfinite(found)
        or bool(found) != bool(number)
        or (isinstance(value, int) and found != value)
    ):
        raise ValueError(f"{key_text(value)} is not a number that the column can store")
    return found


def _number(value: Any) -> Decimal:
    if isinstance(value, str):
        return _decimal_in(value)
    if isinstance(value, float):
        return Decimal(float.__repr__(value))  # 0.1, not its exact 55 digits
    if hasattr(value, "__index__"):
        number = operator.index(value)
        return Decimal(number) if number.bit_length() <= _BITS else Decimal("inf")
    if isinstance(value, Decimal):
        return value
    raise TypeError(f"{key_text(value)} is not a number")


def _decimal_in(text: str) -> Decimal:
    """Return the number in the text, in SQL's syntax: ASCII, without underscores."""
    if len(text) > _DIGITS or not re.fullmatch(_NUMBER, text, re.ASCII):
        raise ValueError(f"{key_text(text)} is not a number")
    return Decimal(text)


def _text(_: ColumnType, value: Any) -> str:
    text = _written(value)
    if not is_storable(text):
        raise ValueError(f"{key_text(value)} contains a NUL or an unpaired surrogate")
    return text


def _written(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, UUID) or type(value) is date:
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _BITS:
        return int.__repr__(value)
    if isinstance(value, (int, float, Decimal, datetime)):
        raise ValueError(  # noqa: TRY004  # there are texts of such values, but several
            f"{key_text(value)} is not a string, and no single string stands for it"
        )
    raise TypeError(f"{key_text(value)} is not a string")


def _bytes(_: ColumnType, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{key_text(value)} is not a bytes object")


def _bool(_: ColumnType, value: Any) -> bool:
    if not isinstance(value, int):
        raise TypeError(f"{key_text(value)} is not a bool")
    if value not in (0, 1):
        raise ValueError(f"{key_text(value)} is not a bool")
    return bool(value)


def _uuid(column_type: Uuid[Any], value: Any) -> UUID | str:
    if isinstance(value, str):
        digits = value.removeprefix("urn:uuid:").strip("{}").replace("-", "")
        if len(value) > _LONGEST_UUID or not re.fullmatch(_HEX, digits):
            raise ValueError(f"{key_text(value)} is not a UUID")
        value = UUID(digits)
    if not isinstance(value, UUID):
        raise TypeError(f"{key_text(value)} is not a UUID")
    return value if column_type.as_uuid else str(value)


def _member(column_type: Any, value: Any) -> Any:
    """Return the Enum's member, or the text for an Enum of texts."""
    kind = column_type.enum_class
    if kind is not None and isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{key_text(value)} is not a member of the Enum")
    of_text = column_type.result_processor(DefaultDialect(), None)
    with suppress(LookupError):
        return of_text(str.__str__(value))
    raise ValueError(f"{key_text(value)} is not a member of the Enum")


def _date(_: ColumnType, value: Any) -> date:
    found = _from_text(date, _DATE, value)
    if isinstance(found, datetime):
        if found.time() != time() or found.tzinfo is not None:
            raise ValueError(f"{key_text(value)} has a time, and the column stores dates only")
        return found.date()
    return found


def _datetime(_: ColumnType, value: Any) -> datetime:
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001  # as databases take it
    return _from_text(datetime, _DATETIME, value)


def _time(_: ColumnType, value: Any) -> time:
    return _from_text(time, _TIME, value)


def _from_text(kind: type[T], written: str, value: Any) -> T:
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{key_text(value)} is not a {kind.__name__}")
    if re.fullmatch(written, value, re.ASCII):
        with suppress(ValueError):  # the 30th of February
            return kind.fromisoformat(value)
    raise ValueError(f"{key_text(value)} is not a {kind.__name__} in ISO 8601 format")


_CONVERSIONS: Final[Mapping[type[Any] | None, Convert]] = {
    int: _integer,
    Decimal: _decimal,
    float: _float,
    str: _text,
    bytes: _bytes,
    bool: _bool,
    date: _date,
    datetime: _datetime,
    time: _time,
}
