"""What one session's transaction holds, and what follows when it fails."""

from .connections import Participant, Participants, was_lent
from .error_translation import Failures
from .failed import Aftermath
from .ledger import Ledger, ranks_of
from .messages import name_document
from .on_commit import OnCommit
from .pipeline import Pipelining

__all__ = [
    "Aftermath",
    "Failures",
    "Ledger",
    "OnCommit",
    "Participant",
    "Participants",
    "Pipelining",
    "name_document",
    "ranks_of",
    "was_lent",
]
