"""The actions that run before a connection goes back to its pool, and connections outside of it."""

from .old_names import level_was_set, rollback_later, rollback_not_needed, undo_now
from .on_return import (
    GUARD_ISOLATION_LEVEL,
    ROLLBACK,
    CallFunction,
    ExecuteStatement,
    ReturnAction,
    execute_statements_now,
    on_return,
    withdraw,
)
from .reset import note_ended, skip_redundant_rollback
from .side_connection import side_connection

__all__ = [
    "GUARD_ISOLATION_LEVEL",
    "ROLLBACK",
    "CallFunction",
    "ExecuteStatement",
    "ReturnAction",
    "execute_statements_now",
    "level_was_set",
    "note_ended",
    "on_return",
    "rollback_later",
    "rollback_not_needed",
    "side_connection",
    "skip_redundant_rollback",
    "undo_now",
    "withdraw",
]
