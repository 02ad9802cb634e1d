"""One session's transaction: its connections, its locks, and its failure."""

from .connections import TransactionConnection, TransactionConnections, level_of
from .first_use import FirstUse
from .hold_limit import HoldLimit, noting_limited
from .ledger import Ledger, NamedKey, is_as_strong, ranks_of, strength_of
from .lock_call import LockCall
from .pipeline import SessionPipeline
from .plan import LockPlan, make_plan
from .request import LockRequest, add_document
from .routing import BindRouter, database_name
from .state import TransactionState
