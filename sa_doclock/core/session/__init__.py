"""The session of the core: its locking methods, and its listeners for session events."""

from .core_session import CoreSession, HeldLocks
from .hooks import commits_of, context_of
from .lock_methods import check_block_lock, key_of, no_result
