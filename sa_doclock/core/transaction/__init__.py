"""One session's transaction: its opening, connections, locks, failure, and the parts that join it."""

from ..lock_request import (
    NO_ARGUMENTS,
    LockCall,
    LockRequest,
    add_document,
    database_name,
    given,
)
from .condition import Condition
from .connection import TransactionConnection, connections_of, level_of
from .connection_events import watch, watch_all, watch_connection, watch_lent
from .context import LockContext, state_of
from .dialect_events import StatementCheck, check_statements, follow_dialect
from .first_use import FirstUse
from .foreign import is_built
from .lock_transaction import LockTransaction
from .locks_lost_errors import about_held, others_text, refuse_after
from .part import Block, Executor, Limit, Reads, SessionPart, Take, around
from .plan import LockPlan, make_plan
from .prepared import prepared_locks
