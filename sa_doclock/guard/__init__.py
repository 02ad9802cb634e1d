"""The write guard: no write to a declared document without its ForUpdate lock."""

from .dml import BulkGuard
from .flush import Guard, GuardMode, Write, check_guard_mode
from .provenance import READ, Reads, note

__all__ = ["READ", "BulkGuard", "Guard", "GuardMode", "Reads", "Write", "check_guard_mode", "note"]
