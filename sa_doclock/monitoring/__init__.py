"""Holders of locks, waits for locks, and the log records and events of a session."""

from .diagnosis import Diagnosis
from .held_warnings import HeldWarnings
from .instrumentation import LockInstrumentation, log_fields, warn_of_cluster
from .lock_waits import lock_waits, missing_privilege
