"""A lock timeout that travels with the statement that it is for.

In a pipeline nothing is known yet when the next statement is sent: a setting of our own keeps
the old value, and ends with the transaction too.
"""

from __future__ import annotations

from typing import Final

PUT_TIMEOUT: Final = (
    "SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), "
    "set_config('lock_timeout', %s, true)"
)
TAKE_TIMEOUT_BACK: Final = (
    "SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)"
)
LOCKING: Final = ("FOR UPDATE", "FOR SHARE", "pg_advisory_xact_lock")
"""One of these is in the text of every statement that waits for a lock."""
