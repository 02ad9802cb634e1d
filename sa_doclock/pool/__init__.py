"""The actions that run before a connection goes back to its pool."""

from .on_return import (
    GUARD_ISOLATION_LEVEL,
    ROLLBACK,
    CallFunction,
    ExecuteStatement,
    ReturnAction,
    actions_of,
    execute_now,
    execute_statements_now,
    is_registered,
    on_return,
    withdraw,
)
from .reset import note_ended, rolls_back_by_listener, skip_redundant_rollback
