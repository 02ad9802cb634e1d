"""The error numbers of a server, and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ..errors import DocLockError

NativeCode = int | str
"""An error number of the server; an SQLSTATE is a string."""


class Ends(Enum):
    """The part of a transaction that an error ends, besides its statement."""

    NOTHING = "nothing"
    """The transaction continues."""

    TRANSACTION = "the transaction"
    """The server has no transaction now: no statement may follow."""

    CONNECTION = "the connection"
    """The server closes the connection too."""

    CONNECTION_BEFORE = "the connection, before"
    """The server had closed the connection before it got the statement: a COMMIT did not take effect."""

    NOTHING_LEFT = "nothing was left"
    """A ROLLBACK found no transaction."""


class EveryError(Enum):
    """The effect of any error on the transaction."""

    GOES_ON = "goes on"
    """An error ends only its statement, unless its row says more."""

    ABORTS = "aborts"
    """After any error the transaction can only be rolled back; its COMMIT is a silent ROLLBACK."""

    MAY_END = "may end"
    """No code shows whether the transaction has ended: the server is asked for a mark of it."""


class Limit(Enum):
    """The limit that ended a statement."""

    LOCK = "lock"
    """The server's own limit for a wait, or ``lock_timeout``."""

    STATEMENT = "statement"
    """A limit for the whole statement, whether or not it waited for a lock."""


class ErrorCode(NamedTuple):
    """The meaning of one error code: a row of a server's table."""

    error: type[DocLockError] | None = None
    """The class of the error, in every statement."""

    why: str = ""
    """The sentence with the reason; empty: the default of the class."""

    in_lock: type[DocLockError] | None = None
    """The class of the error while a lock is being taken, if it differs."""

    ends: Ends = Ends.NOTHING
    """The part of the transaction that it ends."""

    limit: Limit | None = None
    """The limit that ended the statement."""

    advice: str = ""
    """A sentence added to the driver's error, if it keeps its class."""

    monitoring: str = ""
    """The privilege of the account, or the setting of the server, that LockMonitoring needs."""


class MetError(NamedTuple):
    """A driver's error, and the circumstances of its statement.

    :ivar orig: the driver's error.
    :ivar connection: it may accept no more statements.
    :ivar locking: a lock of ours is being taken; False for other statements and COMMIT.
    :ivar by_key: the lock finds its rows by primary key, so that it is slow only if it waits.
    """

    code: NativeCode | None
    orig: BaseException
    connection: Connection
    locking: bool = False
    by_key: bool = False


_NO_MEANING: Final = ErrorCode()


class ErrorCodes:
    """The errors of the server: one row for each code."""

    codes: Mapping[NativeCode, ErrorCode]
    """The rows.  An error without a row remains the driver's error."""

    every_error: ClassVar[EveryError] = EveryError.GOES_ON
    """The effect of any error on the transaction."""

    def __getitem__(self, code: NativeCode | None) -> ErrorCode:
        return self.codes.get(code, _NO_MEANING) if code is not None else _NO_MEANING

    def native_code(self, orig: BaseException) -> NativeCode | None:
        """Return the server's own code in a driver's exception, or None."""
        raise TypeError(f"{type(self).__name__} must read the error numbers of its drivers")

    def meaning(self, met: MetError) -> ErrorCode:
        """Return the row of this error; override it if the code does not suffice."""
        row = self[met.code]
        return _NO_MEANING if row.limit is Limit.STATEMENT and not met.by_key else row


def code_of(errors: ErrorCodes, error: DBAPIError) -> NativeCode | None:
    """Return the server's own code in an error of SQLAlchemy, or None."""
    return None if error.orig is None else errors.native_code(error.orig)
