"""The round trips of a lock: how often the program waits for an answer of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...dialects.base import LockStrategy
from ...options import LockOptions, is_row_lock

_BEGINS: Final[Mapping[tuple[str, str], int]] = {
    # The driver sends BEGIN alone, the isolation level with it.
    ("postgresql", "psycopg"): 1,
    # autocommit=0 was sent with the connection: the first statement begins the transaction.
    ("mysql", "pymysql"): 0,
    ("mariadb", "pymysql"): 0,
}
"""By database and driver: the round trips of the driver's own BEGIN, each counted by a test."""


def round_trips_of(
    strategy: LockStrategy, driver: str, lock: LockOptions, sent: int, travelling: int
) -> tuple[int | None, int | None]:
    """Return the round trips of a lock that opens its transaction.

    :param sent: the number of statements that SQLAlchemy sends for it.
    :param travelling: how many of those travel with the locking one in a pipeline, besides it.
    :returns: those of a session as it is by default, None where nobody has counted this driver's;
        and those with ``pipeline=True``, None where there is no pipeline.
    """
    if strategy.locks_database:  # SQLite: it runs in the program
        return 0, None
    begin = _BEGINS.get((strategy.name, driver))
    if begin is None:
        return None, None
    default = begin + sent
    if driver != "psycopg":
        return default, None
    # BEGIN and the limit travel with the lock; a read without one begins as it does by default.
    return default, sent - travelling if is_row_lock(lock) else default
