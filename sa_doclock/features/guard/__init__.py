"""The write guard: no write to a declared document without its ForUpdate lock.

It checks what a flush is about to write (``before_flush``) and has written (events of mappers), and
the statements and bulk methods of a session (``around_dml``, ``around_objects``, ``around_rows``).
It keeps the headers that a transaction has inserted, which need no lock (``mark``, ``roll_back_to``,
``locks_lost``, ``ended``).
"""

from .atomic import atomic_update
from .provenance import ReadProvenance
from .refusals import check_guard_mode
from .write_guard import WriteGuard
