"""Holders of locks, waits for locks, and the log records and events of a session."""

from .cluster_warning import warn_of_cluster
from .diagnosis import Diagnosis
from .instrumentation import LockInstrumentation, log_fields
from .lock_waits import lock_waits
