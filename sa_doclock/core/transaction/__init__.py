"""One session's transaction: its connections, its locks, its failure, and the parts that join it."""

from .connection import TransactionConnection
from .connections import TransactionConnections, level_of
from .dialect_events import follow_dialect
from .first_use import FirstUse
from .foreign import is_built
from .ledger import Ledger, LedgerMark, NamedKey, is_as_strong, ranks_of, strength_of
from .locks_lost_errors import about_held, others_text
from .part import Block, Limit, Reads, SessionPart, Take
from .plan import LockPlan, make_plan
from .request import (
    NO_ARGUMENTS,
    LockCall,
    LockRequest,
    add_document,
    database_name,
    given,
    is_of_few_rows,
)
from .state import TransactionState, around, state_of
