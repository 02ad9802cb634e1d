"""Holders of locks, waits for locks, and the log records and events of a session."""

from ...core.instrumentation import LockInstrumentation, log_fields, warn_of_cluster
from .lock_waits import describe_connections, lock_waits, missing_privilege
from ...features.shared_query import SharedQueries
