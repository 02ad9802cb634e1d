"""The statements and loader options whose rows no database can lock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm.interfaces import ORMOption

from ...errors import LockNotSupported
from ..sqlalchemy_internals import is_distinct, is_grouped, loads_of, options_of


def refuse_unlockable_shape(statement: Select[Any]) -> None:
    """Raise LockNotSupported if a row of the result is not a row of the table."""
    if is_distinct(statement):
        raise LockNotSupported("rows of a SELECT DISTINCT cannot be locked; use EXISTS instead")
    if is_grouped(statement):
        raise LockNotSupported("rows of a GROUP BY cannot be locked; select the keys first")
    options = options_of(statement)
    if options:
        refuse_unlockable_options(options)


def refuse_unlockable_options(options: Iterable[Any]) -> None:
    """Raise LockNotSupported if an option reads details by the locking statement."""
    for relationship, strategy in loads_of(options):
        if strategy in ("joined", "subquery"):
            raise LockNotSupported(
                f"{strategy}load({getattr(relationship, 'key', '*')}) reads details by the locking statement itself, "
                "as they were before the lock was granted; use selectinload()"
            )


def checked_options(options: Iterable[Any]) -> tuple[ORMOption, ...]:
    """Return the loader options as a tuple."""
    checked = tuple(options)
    for option in checked:
        if not isinstance(option, ORMOption):
            raise TypeError(f"options must be a list of loader options; {option!r} is none")
    return checked


def relationships_with_options(options: Iterable[Any]) -> frozenset[Any]:
    """Return the relationships that have a loader option; ``*`` stands for all."""
    return frozenset(relationship for relationship, _ in loads_of(options))
