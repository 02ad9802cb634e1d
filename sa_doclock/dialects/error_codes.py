"""The error numbers of a server, their meaning, and the origin of an error in the driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from traceback import walk_tb
from types import FrameType
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


def raised_within(connection: Connection, error: BaseException, methods: Collection[str]) -> bool:
    """Return whether the error comes from a call inside one of these methods of the driver.

    An error raised by the method itself concerns its arguments: nothing was sent.

    :param methods: the methods that send a statement and read its answer, or parts of that.
    """
    callers = _frames_of(error)[:-1]
    named = [frame for frame in callers if frame.f_code.co_name in methods]
    return any(_is_of_driver(connection, frame) for frame in named)


def raised_by_driver(connection: Connection, error: BaseException) -> bool:
    """Return whether the error is the driver's, or its socket's, or was raised by the driver's code.

    An error of other code that was called there, such as a signal handler, does not count.
    """
    if isinstance(error, (OSError, connection.dialect.loaded_dbapi.Error)):
        return True
    if connection.invalidated or connection.closed:
        return False  # its driver connection is gone
    return any(_is_of_driver(connection, frame) for frame in _frames_of(error)[-1:])


def _frames_of(error: BaseException) -> list[FrameType]:
    """Return the frames, down to the frame that raised the error.

    Some codecs are in C and have no frame.  Frames of codecs in Python are dropped too: their
    caller counts as raising the error.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    while frames and _package_of(frames[-1]) == "encodings":
        frames.pop()
    return frames


def _is_of_driver(connection: Connection, frame: FrameType) -> bool:
    package, *_ = type(connection.connection.driver_connection).__module__.split(".")
    return _package_of(frame) == package


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).split(".")[0]
