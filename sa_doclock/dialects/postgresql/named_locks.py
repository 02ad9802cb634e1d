"""The named locks of PostgreSQL: advisory locks, by a 64-bit number.

The number is the beginning of a SHA-256 of the key, computed here.  The server's hashes can be
inverted: a user who chooses a part of a key, such as a name, could hit the number of any other key.
docs/named-locks.md tells other programs how to compute it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, text

from ...errors import LockFailed, LockNotAvailable, LockNotSupported
from ...options import LockOptions
from ...wait_info import KEY_MARK
from ..named_locks import NamedLocks, remember_key
from ..waits import LockWaits

# The server has only the number: a comment in the statement lets lock_waits() in another process
# show the key.  Its text cannot end the comment, begin another, or be a placeholder.
_NOT_IN_COMMENT: Final = re.compile(r"[^\w .:/@+=,#-]")
_LONGEST_IN_COMMENT: Final = 100

OLD_KEYS: Final = "doclock_old_keys"
"""An execution option of engines: also lock the number that earlier versions computed."""

_NUMBER: Final = "CAST(:number AS bigint)"
_OLD_NUMBER: Final = "hashtextextended(:key, 0)"
_FUNCTIONS: Final[Mapping[LockOptions, str]] = {
    LockOptions.ForUpdate: "pg_advisory_xact_lock",
    LockOptions.SharedRead: "pg_advisory_xact_lock_shared",
    LockOptions.ForUpdate | LockOptions.NoWait: "pg_try_advisory_xact_lock",
    LockOptions.SharedRead | LockOptions.NoWait: "pg_try_advisory_xact_lock_shared",
}


def _statement(lock: LockOptions, *numbers: str) -> TextClause:
    calls = [f"{_FUNCTIONS[lock]}({number})" for number in numbers]
    # The waiting functions return nothing.
    found = " AND ".join(calls) if LockOptions.NoWait in lock else ", ".join(calls)
    # A standby grants them too, but only among its own sessions: there, no row is returned.
    return text(f"SELECT {found} WHERE NOT pg_is_in_recovery()")


_TAKE: Final = {lock: _statement(lock, _NUMBER) for lock in _FUNCTIONS}
_TAKE_BOTH: Final = {lock: _statement(lock, _OLD_NUMBER, _NUMBER) for lock in _FUNCTIONS}


def number_of(key: str) -> int:
    """Return the number of this key: the first 8 bytes of its SHA-256, with a sign."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True)


class PostgreSQLNamedLocks(NamedLocks):
    """Advisory locks of the transaction.

    :param waits: limits them like row locks.
    """

    def __init__(self, waits: LockWaits) -> None:
        self._waits = waits

    def take(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        with self._waits.limited(connection, lock, seconds):
            found = lock_key(connection, key, lock)
        if found is None:
            raise LockNotSupported(
                "a standby server does not know the named locks of its primary. "
                "Take the lock on the primary"
            )
        return LockNotAvailable if found[0] is False else None


def lock_key(connection: Connection, key: str, lock: LockOptions) -> Row[Any] | None:
    """Lock the number of this key to the end of the transaction.

    :returns: a row whose first value is False if NoWait did not get it; None on a standby.
    """
    number = number_of(key)
    remember_key(key, str(number))
    values: dict[str, Any] = {"number": number}
    statement = _TAKE[lock]
    if connection.get_execution_options().get(OLD_KEYS):
        values["key"] = key
        statement = _TAKE_BOTH[lock]
    # For asyncpg, each new text costs a round trip to prepare it, and evicts another statement.
    hides_key = connection.engine.hide_parameters or connection.dialect.driver == "asyncpg"
    if LockOptions.NoWait in lock or hides_key:
        return connection.execute(statement, values).first()
    readable = _NOT_IN_COMMENT.sub("_", key[:_LONGEST_IN_COMMENT]).replace(":", r"\:")
    # Every key has its own text, and the cache is for the program's statements.
    return connection.execute(
        text(f"{statement.text} /* {KEY_MARK} {readable} */"),
        values,
        execution_options={"compiled_cache": None},
    ).first()
