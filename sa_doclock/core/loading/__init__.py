"""The reading of what a lock covers: what the session has loaded of a document, and its parts."""

from .load_parts import load_again, load_parts, reads_of
from .loaded import LoadedDocuments, Unreadable, role_of
