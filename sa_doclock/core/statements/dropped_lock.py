"""The ``with_for_update()`` of a UNION and of ``from_statement()``, which may compile to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import CompoundSelect, Select
from sqlalchemy.orm import FromStatement
from sqlalchemy.sql import visitors

from ...dialects.base import LockStrategy
from ...errors import LockNotSupported
from ..sqlalchemy_internals import for_update_clause


def refuse_dropped_lock(statement: Any, strategy: Callable[[], LockStrategy]) -> None:
    """Raise LockNotSupported if SQLAlchemy leaves out a ``with_for_update()`` of the statement.

    :param strategy: returns the dialect that it is compiled for; called if it has such a lock.
    """
    inner = statement.element if isinstance(statement, FromStatement) else statement
    locking = [one for one in visitors.iterate(inner) if _has_lock(one)]
    if any(isinstance(one, CompoundSelect) for one in locking):
        raise LockNotSupported(
            "SQLAlchemy sends no FOR UPDATE of a UNION: lock the rows by a select of their own"
        )
    if not locking:
        return
    known = strategy()
    if known.hints or known.locks_database:
        raise LockNotSupported(
            f"FOR UPDATE within a {type(statement).__name__} is not sent on {known.name}: execute "
            "the select that has the lock by itself"
        )


def _has_lock(one: Any) -> bool:
    return isinstance(one, (Select, CompoundSelect)) and for_update_clause(one) is not None
