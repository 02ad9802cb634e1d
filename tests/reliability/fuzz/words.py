"""The spelling of a lock on each database, written once more, without the library.

What a database has received is read by :func:`missing`, which says what is not there of the lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sa_doclock import LockOptions

ANY_LOCK = re.compile(
    r"FOR UPDATE|FOR SHARE|SHARE MODE|UPDLOCK|NOLOCK|READPAST|BEGIN IMMEDIATE|READ ONLY|SNAPSHOT"
)
_RC = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_FOR_UPDATE, _SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
_END = r"( WAIT \d+)?(  -- .*)?$"  # MariaDB has a word for a lock_timeout


class Asked(NamedTuple):
    """:ivar lock: the base lock.
    :ivar limit: seconds; the tests ask for 0.3 alone.
    :ivar earlier: what was sent in the transaction before.
    :ivar received: what was sent to it for this lock.
    """

    lock: LockOptions
    no_wait: bool
    skip: bool
    limit: float | None
    header: str
    earlier: Sequence[str]
    received: Sequence[str]

    @property
    def all(self) -> Sequence[str]:
        return [*self.earlier, *self.received]


def missing(database: str, asked: Asked) -> str | None:
    """Return the part of the lock that was not sent; None if all is there."""
    if asked.lock is LockOptions.None_ or (
        asked.lock is LockOptions.NoLock and database != "mssql"
    ):
        locked = [sql for sql in asked.received if ANY_LOCK.search(sql)]
        return f"no lock, but {locked}" if locked else None
    return _DATABASES[database](asked) or (_no_limit(database, asked) if asked.limit else None)


def _no_limit(database: str, asked: Asked) -> str | None:
    """The wait is limited wherever there is something to wait for."""
    if database == "mssql" and asked.lock is _SHARED and _mssql_snapshot(asked) is None:
        return None
    words = _LIMITS[database]
    return None if any(re.search(words, sql) for sql in asked.received) else words


#: 0.3 seconds.
_LIMITS: Mapping[str, str] = {
    "postgresql": r"set_config\('lock_timeout', .* -- '300(ms)?'",
    "mysql": r"/\*\+ MAX_EXECUTION_TIME\(300\) \*/",
    "mysql-5.7": r"/\*\+ MAX_EXECUTION_TIME\(300\) \*/",
    "mariadb": r"max_statement_time=0\.300 FOR",
    "mssql": r"SET LOCK_TIMEOUT 300",
    "sqlite": r"PRAGMA busy_timeout = 300",
}


def _row_lock(words: Mapping[LockOptions, str], quotes: str) -> Callable[[Asked], str | None]:
    def find(asked: Asked) -> str | None:
        end = words[asked.lock].format(_quoted(asked.header, quotes))
        end += " NOWAIT" if asked.no_wait else " SKIP LOCKED" if asked.skip else ""
        return _a_select(asked.received, rf" {re.escape(end)}{_END}")

    return find


def _postgresql(asked: Asked) -> str | None:
    if asked.lock is LockOptions.SnapshotRead:
        return _in_order(
            asked.all, "(isolation level REPEATABLE_READ)", "SET TRANSACTION READ ONLY"
        )
    return _row_lock({_FOR_UPDATE: "FOR UPDATE OF {}", _SHARED: "FOR SHARE OF {}"}, '""')(asked)


def _innodb(for_update: str, shared: str) -> Callable[[Asked], str | None]:
    find = _row_lock({_FOR_UPDATE: for_update, _SHARED: shared}, "``")

    def innodb(asked: Asked) -> str | None:
        if asked.lock is LockOptions.SnapshotRead:
            return _in_order(asked.all, "START TRANSACTION READ ONLY")
        return _in_order(asked.all, _RC) or find(asked)

    return innodb


def _mssql(asked: Asked) -> str | None:
    snapshot = _mssql_snapshot(asked)
    if asked.lock is LockOptions.SnapshotRead:
        return snapshot
    if asked.lock is _SHARED and not asked.skip and snapshot is None:
        return None
    hint = "NOLOCK" if asked.lock is LockOptions.NoLock else "UPDLOCK, ROWLOCK"
    hint += ", NOWAIT" if asked.no_wait else ", READPAST, READCOMMITTEDLOCK" if asked.skip else ""
    table = re.escape(_quoted(asked.header, "[]"))
    # A join is locked by the keys of its rows, where its alias has no name.
    return _a_select(
        asked.received, rf"(?<!\w)({table}|\w+\]?(?=.*FORCESEEK)) WITH \({hint}(, FORCESEEK)?\)"
    )


def _mssql_snapshot(asked: Asked) -> str | None:
    return _in_order(asked.all, "SET TRANSACTION ISOLATION LEVEL SNAPSHOT")


def _sqlite(asked: Asked) -> str | None:
    begun = "BEGIN IMMEDIATE" in asked.all and "BEGIN IMMEDIATE" not in asked.received
    waits = asked.no_wait and asked.received and not begun  # nobody waits who has the write lock
    if waits and "PRAGMA busy_timeout = 0" not in asked.received:
        return "PRAGMA busy_timeout = 0"
    late = r"^(UPDATE \S+ SET .*\n?.*(0 = 1|1 != 1|false))"
    first = r"^BEGIN IMMEDIATE$" if asked.lock is _FOR_UPDATE else r"^BEGIN\b"
    found = any(re.search(rf"{first}|{late}", sql) for sql in asked.all)
    return None if found else first


def _quoted(name: str, quotes: str) -> str:
    return name if re.fullmatch("[a-z_]+", name) else quotes[0] + name + quotes[1]


def _a_select(received: Sequence[str], pattern: str) -> str | None:
    found = any("SELECT" in sql and re.search(pattern, sql) for sql in received)
    return None if found else pattern


def _in_order(received: Sequence[str], *statements: str) -> str | None:
    """Each of them, one after the other."""
    rest = iter(received)
    return next((sql for sql in statements if sql not in rest), None)


_DATABASES: Mapping[str, Callable[[Asked], str | None]] = {
    "postgresql": _postgresql,
    "mysql": _innodb("FOR UPDATE OF {}", "FOR SHARE OF {}"),
    "mysql-5.7": _innodb("FOR UPDATE", "LOCK IN SHARE MODE"),
    "mariadb": _innodb("FOR UPDATE", "LOCK IN SHARE MODE"),
    "mssql": _mssql,
    "sqlite": _sqlite,
}
