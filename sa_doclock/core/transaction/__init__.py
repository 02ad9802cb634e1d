"""One session's transaction: its connections, its locks, its failure, and the parts that join it."""

from ..lock_request import (
    NO_ARGUMENTS,
    LockCall,
    LockRequest,
    add_document,
    database_name,
    given,
    is_of_few_rows,
)
from .connection import TransactionConnection
from .connection_events import Mark
from .connections import level_of
from .context import LockContext, state_of
from .dialect_events import follow_dialect
from .first_use import FirstUse
from .foreign import is_built
from .locks_lost_errors import about_held, others_text
from .part import Block, Limit, Reads, SessionPart, Take, around
from .plan import LockPlan, make_plan
