"""A kit for the tests of programs that lock documents; it does not need pytest."""

from .audit import Audit, AuditFinding, audit, explore_finding
from .concurrent import async_two_at_once, two_at_once
from .exploration import Exploration, Failure, explore
from .outcome import Outcome
from .records import LockRecord, assert_locked, recorded_locks
from .rollback import rollback_session
from .waiting import wait_until_blocked

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
