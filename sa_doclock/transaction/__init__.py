"""One session's transaction: its connections, its locks, and its failure."""

from .connections import TransactionConnection, TransactionConnections
from .ledger import Ledger, NamedKey, is_as_strong, ranks_of
from .lock_call import LockCall
from .messages import add_document, reason
from .pipeline import SessionPipeline
from .plan import LockPlan, make_plan
from .request import LockRequest
from .state import TransactionState
