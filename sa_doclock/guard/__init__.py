"""The write guard: no write to a declared document without its ForUpdate lock."""

from .dml import DmlGuard
from .flush import (
    FlushGuard,
    GuardMode,
    Write,
    check_guard_mode,
    checked_rows,
    not_checked,
    rows_of_flush,
    set_guard_of_all,
)
from .provenance import ReadLog, new_read_log, note_refresh
