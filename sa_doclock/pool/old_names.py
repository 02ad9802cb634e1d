"""The names of before, for transaction/connections.py alone; remove with their last use."""

from __future__ import annotations

from sqlalchemy import Connection

from .on_return import (
    GUARD_ISOLATION_LEVEL,
    ROLLBACK,
    execute_statements_now,
    on_return,
    withdraw,
)

undo_now = execute_statements_now


def level_was_set(connection: Connection) -> None:
    """Register GUARD_ISOLATION_LEVEL."""
    on_return(connection, GUARD_ISOLATION_LEVEL)


def rollback_later(connection: Connection) -> None:
    """Register ROLLBACK."""
    on_return(connection, ROLLBACK)


def rollback_not_needed(connection: Connection) -> None:
    """Withdraw ROLLBACK."""
    withdraw(connection, ROLLBACK)
