"""A primary key that a row could have, for a table that has none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Enum
from sqlalchemy.orm import Mapper
from sqlalchemy.types import TypeEngine

from ...core.documents import converts, key_value
from ...core.lock_info import Identity

# Each type that converts values takes one of these.
_CANDIDATES: Final = (0, b"", "2000-01-01", "00:00", "00000000-0000-0000-0000-000000000000")


def some_key(mapper: Mapper[Any]) -> Identity:
    """Return a primary key that a row of this class could have.

    :raises LookupError: only a type of its columns knows one.
    """
    return tuple(some_value(column.type) for column in mapper.primary_key)


def some_value(column_type: TypeEngine[Any]) -> Any:
    """Return a value that a column of this type can have.

    :raises LookupError: only the type itself knows one.
    """
    candidates = column_type.enums if isinstance(column_type, Enum) else _CANDIDATES
    for one in candidates if converts(column_type) else ():
        with suppress(TypeError, ValueError):
            return key_value(column_type, one)
    raise LookupError(f"no value of {column_type!r} is known")
