"""explain_lock(): the statements, rows and waits of a lock, without taking it."""

from .explanation import LockExplanation, explain_lock
