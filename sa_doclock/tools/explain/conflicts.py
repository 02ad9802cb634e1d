"""Facts of a lock by database: its rows, its waits, its notes, and its round trips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...dialects.base import Locked, LockStrategy
from ...options import LockOptions, base_of, is_row_lock


class Conflicts(NamedTuple):
    """A lock on one database, in words.

    :ivar kind: of the lock on each row; None: it locks no row.
    :ivar others: the statements that wait for this lock, or for which it waits.
    :ivar notes: the particulars of this database.
    """

    kind: str | None
    others: tuple[str, ...]
    notes: tuple[str, ...] = ()


_READS: Final = "plain reads and SnapshotRead do not wait: they see the rows committed before"
_TABLE: Final = "ALTER TABLE, DROP TABLE and other changes of the table's definition"
_NOTHING: Final = Conflicts(
    None, (), ("nothing is locked, and it waits for nobody but a change of the table's definition",)
)
_WRITERS: Final = (
    "ForUpdate of the same row, also by with_for_update()",
    "UPDATE and DELETE of the row",
)
_SHARED: Final = "SharedRead of the same row"
_REFERRERS: Final = "INSERT and UPDATE of rows that refer to it by a foreign key"
_DETAILS: Final = (
    "details are not locked: their writers are held off by the header's lock, which they must take"
)

_ROW_LOCKS: Final[Mapping[LockOptions, Conflicts]] = {
    LockOptions.ForUpdate: Conflicts(
        "an exclusive lock", (*_WRITERS, _SHARED, _REFERRERS, _TABLE), (_READS, _DETAILS)
    ),
    LockOptions.SharedRead: Conflicts(
        "a shared lock",
        (*_WRITERS, _TABLE),
        ("other SharedRead of the row go on", _READS, _DETAILS),
    ),
}
_NO_KEY: Final = Conflicts(
    "an exclusive lock that leaves the key alone",
    (*_WRITERS, _SHARED, _TABLE),
    ("rows that refer to it by a foreign key can be inserted meanwhile", _READS, _DETAILS),
)
_ONE_SNAPSHOT: Final = Conflicts(
    None,
    (),
    (
        "a transaction that reads one snapshot; no row is locked",
        "with a rollback journal a commit of another waits until this transaction ends",
    ),
)
_FILE: Final[Mapping[LockOptions, Conflicts]] = {
    LockOptions.ForUpdate: Conflicts(
        "the write lock of the whole file",
        ("every other writer of the file, whatever its rows and tables",),
        (
            "the wait is a loop of tries in the client: there is no queue, and busy_timeout limits it",
            "in WAL mode readers go on; with a rollback journal they wait during the commit",
        ),
    ),
    LockOptions.SharedRead: _ONE_SNAPSHOT,
    LockOptions.SnapshotRead: _ONE_SNAPSHOT,
}
_VERSIONS: Final[Mapping[LockOptions, Conflicts]] = {
    LockOptions.ForUpdate: Conflicts(
        "an update lock (U)",
        (*_WRITERS, _TABLE),
        (
            "plain reads go on until the row is changed, and then wait, unless READ_COMMITTED_SNAPSHOT is on",
            _DETAILS,
            "a transaction that locks about 5,000 rows of a table may get the whole table",
        ),
    ),
    LockOptions.SharedRead: Conflicts(
        None, (), ("row versions in a SNAPSHOT transaction; it locks no row and does not wait",)
    ),
}
_BY_DATABASE: Final[Mapping[str, Mapping[LockOptions, Conflicts]]] = {
    "sqlite": _FILE,
    "mssql": _VERSIONS,
}


def conflicts_of(database: str, lock: LockOptions) -> Conflicts:
    """Return the notes about this lock on this database."""
    if LockOptions.NoKey in lock and database == "postgresql":
        return _NO_KEY
    return _BY_DATABASE.get(database, _ROW_LOCKS).get(base_of(lock), _NOTHING)


def modifier_notes(lock: LockOptions) -> tuple[str, ...]:
    """Return the effect of NoWait or SkipLocked."""
    if LockOptions.NoWait in lock:
        return ("NoWait: where it would have to wait, it is LockNotAvailable at once",)
    if LockOptions.SkipLocked in lock:
        return ("SkipLocked: rows that another holds are left out",)
    return ()


_BEGINS: Final[Mapping[tuple[str, str], int]] = {
    # The driver sends BEGIN alone, with the isolation level.
    ("postgresql", "psycopg"): 1,
    # autocommit=0 was sent on connecting: the first statement begins the transaction.
    ("mysql", "pymysql"): 0,
    ("mariadb", "pymysql"): 0,
}
"""By database and driver: the round trips of the driver's own BEGIN, each counted by a test."""


def round_trips_of(
    strategy: LockStrategy,
    driver: str,
    lock: LockOptions,
    sent: int,
    travelling: int,
    *,
    limited: bool,
) -> tuple[int | None, int | None]:
    """Return the round trips of a lock that opens its transaction.

    :param sent: the number of statements that SQLAlchemy sends for it.
    :param travelling: how many others a pipeline sends with the locking one.
    :param limited: statements around it limit the wait.
    :returns: those of a default session, None if this driver's were not counted; and those with
        ``pipeline=True``, None without a pipeline.
    """
    if strategy.statements.locked is Locked.DATABASE:  # SQLite: it runs in the program
        return 0, None
    begin = _BEGINS.get((strategy.name, driver))
    if begin is None:
        return None, None
    default = begin + sent
    if driver != "psycopg":
        return default, None
    if not is_row_lock(lock):
        return default, default
    # In a pipeline, and where the limit is sent with it, BEGIN is sent with the lock.
    return sent if limited else default, sent - travelling
