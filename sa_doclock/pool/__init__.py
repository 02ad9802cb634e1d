"""What is restored before a connection goes back to its pool, and connections beside the pool."""

from .cleanup import undo_later, undo_nothing, undo_now
from .isolation import level_was_set
from .reset import (
    note_ended,
    rollback_later,
    rollback_not_needed,
    skip_redundant_rollback,
    tidy_later,
    tidy_no_more,
)
from .side_connection import side_connection

__all__ = [
    "level_was_set",
    "note_ended",
    "rollback_later",
    "rollback_not_needed",
    "side_connection",
    "skip_redundant_rollback",
    "tidy_later",
    "tidy_no_more",
    "undo_later",
    "undo_nothing",
    "undo_now",
]
