"""What is restored before a connection goes back to its pool, and connections beside the pool."""

from .cleanup import undo_later, undo_nothing, undo_now
from .isolation import level_was_set
from .reset import (
    note_ended,
    reset_when_needed,
    rollback_later,
    rollback_not_needed,
    tidy_later,
    tidy_no_more,
)
from .side_connection import aside

__all__ = [
    "aside",
    "level_was_set",
    "note_ended",
    "reset_when_needed",
    "rollback_later",
    "rollback_not_needed",
    "tidy_later",
    "tidy_no_more",
    "undo_later",
    "undo_nothing",
    "undo_now",
]
