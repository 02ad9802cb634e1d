"""The base class of all dialects, made of four roles: the public import path for other packages."""

from __future__ import annotations

from typing import ClassVar

from .connection import AUTOCOMMIT, ConnectionState
from .error_codes import ErrorCodes, NativeCode
from .locking import READ_COMMITTED, REPEATABLE_READ, SNAPSHOT, Locking
from .monitoring import LockMonitoring
from .pipeline import Pipeline, Read

__all__ = [
    "AUTOCOMMIT",
    "READ_COMMITTED",
    "REPEATABLE_READ",
    "SNAPSHOT",
    "ConnectionState",
    "ErrorCodes",
    "LockMonitoring",
    "LockStrategy",
    "Locking",
    "NativeCode",
    "Pipeline",
    "Read",
]


class LockStrategy(Locking, ErrorCodes, ConnectionState):
    """The dialect of one database: its locks, errors and connections.  Subclass it for a new one.

    A subclass must give ``name``, ``levels``, ``failures`` and ``native_code()``; all else has a
    default.  There is one object per SQLAlchemy dialect object, that is per engine, so it may
    remember what it has asked its server.  Facts are class attributes; a method answers what a
    fact cannot.  A strategy knows SQL and the driver, never a Session.
    """

    monitoring: ClassVar[LockMonitoring | None] = None
    """The holders and waiters of locks; None: no server can tell."""
