"""SQLAlchemy's ``with_for_update()``, in our words."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import FromStatement

from ...core.sqlalchemy_internals import ForUpdate, for_update_of
from ...options import LockOptions


def lock_of_for_update(statement: Select[Any]) -> LockOptions | None:
    """Return the lock that the statement's ``with_for_update()`` is; None where it has none."""
    found = for_update_of(statement)
    return None if found is None else _lock_of(found._replace(of=()))


# Threads: the cache is of a function that has one answer.
@lru_cache(maxsize=16)  # all that there are
def _lock_of(found: ForUpdate) -> LockOptions:
    lock = LockOptions.SharedRead if found.read else LockOptions.ForUpdate
    if found.key_share and not found.read:
        lock |= LockOptions.NoKey
    if found.nowait:
        lock |= LockOptions.NoWait
    if found.skip_locked:
        lock |= LockOptions.SkipLocked
    return lock


def inner_select(statement: Any) -> Any:
    """Return the statement that is executed: of ``from_statement()``, its argument."""
    return statement.element if isinstance(statement, FromStatement) else statement


def with_inner_select(statement: Any, select: Any) -> Any:
    """Return the statement that executes this select in place of its own."""
    if not isinstance(statement, FromStatement):
        return select
    if statement.element is not select:
        statement = statement.options()  # a generative copy: nothing is added
        statement.element = select
    return statement
