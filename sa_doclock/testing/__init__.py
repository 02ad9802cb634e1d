"""A kit for the tests of programs that lock documents; it does not need pytest.

``audit()``, ``explore()`` and their classes come from the distribution sa-doclock-audit.
"""

from typing import TYPE_CHECKING, Any

from .auditor import NAMES, import_auditor, is_installed
from .concurrent import async_two_at_once, two_at_once
from .outcome import Outcome
from .records import LockRecord, assert_locked, recorded_locks
from .rollback import rollback_session
from .waiting import wait_until_blocked

if TYPE_CHECKING:
    from doclock_audit import (
        Audit,
        AuditFinding,
        Exploration,
        Failure,
        audit,
        explore,
        explore_finding,
    )

__all__ = [
    "Audit",
    "AuditFinding",
    "Exploration",
    "Failure",
    "LockRecord",
    "Outcome",
    "assert_locked",
    "async_two_at_once",
    "audit",
    "explore",
    "explore_finding",
    "recorded_locks",
    "rollback_session",
    "two_at_once",
    "wait_until_blocked",
]

if not is_installed():  # "from sa_doclock.testing import *" imports this module's names
    __all__ = [name for name in __all__ if name not in NAMES]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_auditor(f"{__name__}.{name}"), name)
