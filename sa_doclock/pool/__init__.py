"""The actions that run before a connection goes back to its pool, and connections outside of it."""

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
