"""What one session's transaction holds, and what follows when it fails."""

from .connections import TransactionConnection, TransactionConnections, was_lent
from .error_translation import ErrorTranslation
from .failed import FailedTransaction
from .ledger import Ledger, ranks_of
from .messages import add_document
from .on_commit import OnCommit
from .pipeline import Pipelining

__all__ = [
    "ErrorTranslation",
    "FailedTransaction",
    "Ledger",
    "OnCommit",
    "Pipelining",
    "TransactionConnection",
    "TransactionConnections",
    "add_document",
    "ranks_of",
    "was_lent",
]
