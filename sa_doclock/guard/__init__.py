"""The write guard: no write to a declared document without its ForUpdate lock."""

from .dml import DmlGuard
from .flush import FlushGuard
from .flush_rows import Write, checked_rows, not_checked, rows_of_flush
from .provenance import READS_REMEMBERED, line_of_read, note_refresh
from .refusals import GuardMode, Refusals, check_guard_mode, set_guard_of_all
