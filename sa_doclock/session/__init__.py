"""LockingSession: the core's session with the methods and the options of the features."""

from .base_classes import with_locks
from .checkout_methods import CheckIn, Renew
from .locking_session import LockingSession
