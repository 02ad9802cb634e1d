"""How a lock is taken."""

from .autoflush import without_autoflush
from .by_key import lock_and_read, read, read_again
from .by_keys import identities_of, lock_and_read_many, read_held, read_many, single_key
from .context import LockContext
from .load_parts import load_parts, reads_of
from .named import bind_of_key, check_key, doclock_key, lock_of_key, take
from .refresh import refuse_unsaved
from .select import execute_locked, refuse_streaming
from .wait_policy import Priority, WaitPolicy

__all__ = [
    "LockContext",
    "Priority",
    "WaitPolicy",
    "bind_of_key",
    "check_key",
    "doclock_key",
    "execute_locked",
    "identities_of",
    "load_parts",
    "lock_and_read",
    "lock_and_read_many",
    "lock_of_key",
    "read",
    "read_again",
    "read_held",
    "read_many",
    "reads_of",
    "refuse_streaming",
    "refuse_unsaved",
    "single_key",
    "take",
    "without_autoflush",
]
