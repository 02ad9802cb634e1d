"""Runs two functions in turns, one statement at a time: for two_at_once() and explore().

The names are for sa-doclock-audit, and keep their meaning within one version of sa_doclock.
"""

from .accesses import ANYTHING, Access, Accesses, Mode, TransactionAccesses, at_end, conflict
from .participant import (
    FIRST,
    OWN_TRANSACTION,
    SECOND,
    Participant,
    Step,
    current_participant,
    short_line,
    short_sql,
)
from .scheduler import (
    GOES_ON,
    WAITS,
    Chooser,
    Diverged,
    Function,
    Observer,
    Outcome,
    Scheduler,
    Waits,
)
