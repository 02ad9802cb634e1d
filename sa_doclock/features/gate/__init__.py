"""The queue of one process in front of the connection pool."""

from .document_gate import DocumentGate, queues_of
from .session_queue import SessionQueue
