"""LockingSession: its public methods, and the session events that it listens to."""

from .hooks import context_of
from .locking_session import LockingSession
