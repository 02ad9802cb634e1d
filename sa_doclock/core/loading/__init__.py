"""Reading under a lock: the loaded objects of a document, and its parts."""

from .class_roles import Role, role_of
from .document_index import DocumentIndex, Unreadable
from .load_parts import is_loaded, load_again, load_parts, reads_of
from .loaded import LoadedDocuments
from .pending_changes import (
    NO_CHANGES,
    PENDING_BEFORE,
    PendingChange,
    changed_since,
    in_session_order,
    pending_changes,
)
