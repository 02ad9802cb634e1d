"""LockingSession: its public methods, and the session events that it listens to."""

from .base_classes import with_locks
from .hooks import commits_of, context_of
from .locking_session import LockingSession, locks_held_by
from .scoped import LockingScopedSession, checked_factory, documented_proxy, is_scoped_session
from .targets import check_block_lock
