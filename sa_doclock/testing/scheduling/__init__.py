"""Two functions at once, of which one statement at a time goes on.

``two_at_once()`` and the ``explore()`` of sa-doclock-audit choose the function whose turn it is; the rest
is here.  The names below are for packages that build on them, and keep their meaning within a minor
version of sa-doclock.
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
from .scheduler import GOES_ON, WAITS, Chooser, Diverged, Function, Observer, Scheduler, Waits

__all__ = [
    "ANYTHING",
    "FIRST",
    "GOES_ON",
    "OWN_TRANSACTION",
    "SECOND",
    "WAITS",
    "Access",
    "Accesses",
    "Chooser",
    "Diverged",
    "Function",
    "Mode",
    "Observer",
    "Participant",
    "Scheduler",
    "Step",
    "TransactionAccesses",
    "Waits",
    "at_end",
    "conflict",
    "current_participant",
    "short_line",
    "short_sql",
]
