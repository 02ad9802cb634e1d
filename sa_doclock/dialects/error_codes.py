"""The error numbers of a server, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ..errors import DocLockError

NativeCode = int | str
"""An error number of the server; an SQLSTATE is a string."""


class ErrorCodes:
    """The errors of the server, by number, with their meanings."""

    failures: ClassVar[Mapping[NativeCode, type[DocLockError]]]
    """Errors with one meaning in every statement."""

    refusals: ClassVar[Mapping[NativeCode, tuple[type[DocLockError], str]]] = {}
    """Errors with a meaning only while a lock is being taken, with a sentence that says why."""

    rolls_back_transaction: frozenset[NativeCode] = frozenset()
    """Errors after which the server has no transaction: no statement may follow them."""

    requires_rollback: frozenset[NativeCode] = frozenset()
    """Errors, of any statement, after which only a rollback makes sense: the transaction is
    gone, or its COMMIT would silently be a ROLLBACK."""

    aborts_on_error: ClassVar[bool] = False
    """After an error of any statement the transaction can only be rolled back, and its COMMIT
    is a silent ROLLBACK."""

    ends_unseen: ClassVar[bool] = False
    """An error may end the transaction, with no number of its own that says so: the transaction is
    marked by its first lock."""

    server_limits: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors of a wait that the server's own setting has ended, not ``lock_timeout``."""

    statement_limits: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors of a statement that took too long, whether or not it has waited for a lock."""

    ends_connection: ClassVar[frozenset[NativeCode]] = frozenset()
    """Of ``failures``, those with which the server may have closed the connection too."""

    breaks_connection: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors after which the server closes the connection, though SQLAlchemy does not know it."""

    ended_while_idle: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors by which the server says that it had ended the transaction before it got the statement:
    a COMMIT that meets one of them was not done."""

    rollback_noise: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors of a ROLLBACK that says only that the transaction was gone already."""

    advice: ClassVar[Mapping[NativeCode, str]] = {}
    """Sentences for people: the reason of an error of ``failures``, or added to one that keeps its class."""

    def native_code(self, orig: BaseException) -> NativeCode | None:
        """Return the server's own error number in a driver's exception; None: it has none."""
        raise TypeError(f"{type(self).__name__} must read the error numbers of its drivers")

    def failure(
        self, code: NativeCode, connection: Connection, *, locking: bool
    ) -> type[DocLockError] | None:
        """Return ``failures`` of this error; override it where the number alone does not tell.

        :param connection: it may take no statement any more.
        :param locking: a lock of ours is being taken; False for other statements and COMMIT.
        """
        return self.failures.get(code)

    def refusal(
        self, code: NativeCode | None, orig: BaseException, *, by_key: bool
    ) -> tuple[type[DocLockError], str] | None:
        """Return ``refusals`` of this error; override it where more than the number is needed.

        :param by_key: the statement finds its rows by primary key, and is not slow by itself.
        """
        return self.refusals.get(code) if code is not None else None


def code_of(errors: ErrorCodes, error: DBAPIError) -> NativeCode | None:
    """Return the server's own error number in an error of SQLAlchemy; None: it has none."""
    return None if error.orig is None else errors.native_code(error.orig)
