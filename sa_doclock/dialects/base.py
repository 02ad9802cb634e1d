"""The base class of all dialects, made of four roles: the public import path for other packages.

All that a dialect of another package needs is here, in ``sa_doclock`` and in ``sa_doclock.errors``.
"""

from __future__ import annotations

from typing import ClassVar

from ..core.lock_info import ACTIVE, IDLE, Identity, LockConnection, Wait
from ..core.pool import CallFunction, ExecuteStatement, on_return, withdraw
from ..options import LockOptions, base_of, milliseconds
from .clock import ServerClock
from .cluster import Cluster
from .connection import (
    AUTOCOMMIT,
    ConnectionState,
    ask_driver,
    connection_setting,
    rewritten_statements,
)
from .error_codes import ErrorCodes, NativeCode
from .hold_limit import ServerHoldLimit
from .isolation import READ_COMMITTED, REPEATABLE_READ, SNAPSHOT, IsolationLevels
from .lock_statements import LockStatements
from .locking import Locking
from .monitoring import LockMonitoring, connections_by_id, elapsed_seconds
from .named_locks import NamedLocks
from .names import quoted_name, schema_of, short_name
from .pipelining import Pipeline, Pipelining, Read
from .transaction_lifecycle import TransactionLifecycle
from .transaction_marks import UNMARKED, TransactionMarks
from .transaction_status import TransactionStatus
from .waits import LockWaits

__all__ = [
    "ACTIVE",
    "AUTOCOMMIT",
    "IDLE",
    "READ_COMMITTED",
    "REPEATABLE_READ",
    "SNAPSHOT",
    "UNMARKED",
    "CallFunction",
    "Cluster",
    "ConnectionState",
    "ErrorCodes",
    "ExecuteStatement",
    "Identity",
    "IsolationLevels",
    "LockConnection",
    "LockMonitoring",
    "LockStatements",
    "LockStrategy",
    "LockWaits",
    "Locking",
    "NamedLocks",
    "NativeCode",
    "Pipeline",
    "Pipelining",
    "Read",
    "ServerClock",
    "ServerHoldLimit",
    "TransactionLifecycle",
    "TransactionMarks",
    "TransactionStatus",
    "Wait",
    "ask_driver",
    "base_of",
    "connection_setting",
    "connections_by_id",
    "elapsed_seconds",
    "milliseconds",
    "on_return",
    "quoted_name",
    "rewritten_statements",
    "schema_of",
    "short_name",
    "withdraw",
]


class LockStrategy(Locking, ConnectionState):
    """The dialect of one database: its locks, errors and connections.  Subclass it for a new one.

    A subclass must give ``name``, ``isolation`` and ``errors``; all else has a
    default.  There is one object per SQLAlchemy dialect object, that is per engine, so it may
    remember what it has asked its server.  Facts are class attributes; a method answers what a
    fact cannot.  A strategy knows SQL and the driver, never a Session.
    """

    monitoring: ClassVar[LockMonitoring | None] = None
    """The holders and waiters of locks; None: no server can tell."""

    waits: LockWaits = LockWaits()
    """The limits of the waits for locks of rows."""

    hold_limit: ClassVar[ServerHoldLimit | None] = None
    """The server's limit for an idle transaction; None: the clock of the client alone limits it."""

    pipelining: Pipelining | None = None
    """Several statements in one round trip; None: the driver cannot."""

    named_locks: ClassVar[NamedLocks | None] = None
    """The locks of names; None: nothing is known of them."""

    clock: ClassVar[ServerClock | None] = None
    """The clock that check-outs go by; None: nothing is known of it, and there are no check-outs."""

    def check_support(self, lock: LockOptions) -> None:
        if self.compatible is not None:
            self.compatible.check_lock(lock)
