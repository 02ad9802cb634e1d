"""SQLAlchemy's ``with_for_update()``, in our words."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select
from sqlalchemy.orm import FromStatement

from ...options import LockOptions
from ..sqlalchemy_internals import ForUpdate, for_update_of


def lock_of_for_update(statement: Select[Any]) -> LockOptions | None:
    """Return the lock that the statement's ``with_for_update()`` is; None where it has none."""
    found = for_update_of(statement)
    if found is None:
        return None
    lock = LockOptions.SharedRead if found.read else LockOptions.ForUpdate
    return lock | _modifiers(found)


def _modifiers(found: ForUpdate) -> LockOptions:
    no_key = found.key_share and not found.read
    return (
        (LockOptions.NoKey if no_key else LockOptions.None_)
        | (LockOptions.NoWait if found.nowait else LockOptions.None_)
        | (LockOptions.SkipLocked if found.skip_locked else LockOptions.None_)
    )


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
