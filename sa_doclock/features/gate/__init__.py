"""The queue of one process in front of the connection pool."""

from .document_gate import DocumentGate, queues_of
from .queue import observed_wait, wait_observer
from .session_queue import SessionQueue
