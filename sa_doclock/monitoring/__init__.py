"""Who holds a lock, who waits for it, and what has happened."""

from .cluster_warning import warn_of_cluster
from .diagnosis import Diagnosis
from .instrumentation import LockInstrumentation, fields_of
from .lock_waits import lock_waits

__all__ = ["Diagnosis", "LockInstrumentation", "fields_of", "lock_waits", "warn_of_cluster"]
