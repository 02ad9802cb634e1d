"""One session's transaction: its opening, connections, locks, failure, and the parts that join it."""

from ..lock_request import NO_ARGUMENTS, LockCall, LockRequest, add_document, database_name, given
from .connection_events import is_built, is_watched, watch, watch_all, watch_connection, watch_lent
from .context import LockContext, binds_of, state_of
from .dialect_events import CompiledCheck, check_statements, follow_dialect
from .error_translation import about_held, others_text, refuse_lost_block
from .failure import Condition
from .lock_transaction import EndOfTransaction, LockTransaction
from .opening import open_for_lock
from .plan import LockPlan, make_plan
from .session_part import Block, Executor, Limit, Noting, Reads, SessionPart, SessionParts, Take
from .transaction_connection import (
    TransactionConnection,
    connections_of,
    is_lost,
    level_of,
    next_moment,
)
