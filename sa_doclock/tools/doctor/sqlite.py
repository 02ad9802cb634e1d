"""Checks of SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy.pool import SingletonThreadPool, StaticPool

from .check import Problem, Subject, check

_OLDEST: Final = (3, 34)
_SHORT_WAIT: Final = 1_000  # milliseconds; sqlite3's default is 5000
# https://www.sqlite.org/wal.html#walresetbug: 3.7.0 to 3.51.2, except these
_WAL_FIXED: Final = (3, 51, 3)
_WAL_BACKPORTS: Final = ((3, 44, 6), (3, 50, 7))


@check("sqlite-shared-connection", "error")
def shared_connection(subject: Subject) -> Iterator[Problem]:
    """All sessions share one connection, such as that of an in-memory database, with its
    transaction and its lock. Every lock raises LockNotSupported.
    """
    if isinstance(subject.engine.pool, (StaticPool, SingletonThreadPool)):
        yield Problem(
            f"sessions share a connection, and its transaction: "
            f"{type(subject.engine.pool).__name__}",
            "use a database file: sqlite:///file.db",
        )


@check("sqlite-journal-mode", "warning")
def journal_mode(subject: Subject) -> Iterator[Problem]:
    """The file is not in WAL mode: a reader stops every commit, and a commit stops every reader."""
    mode = str(subject.ask("PRAGMA journal_mode"))
    if mode not in ("wal", "memory"):
        yield Problem(
            f"readers and writers wait for each other: the journal mode is {mode}",
            "PRAGMA journal_mode = WAL;",
        )


@check("sqlite-busy-timeout", "warning")
def busy_timeout(subject: Subject) -> Iterator[Problem]:
    """A connection waits for a locked file for less than a second (`busy_timeout`), then fails with
    "database is locked": also at a commit, and at other statements.
    """
    found = int(subject.ask("PRAGMA busy_timeout"))
    if found < _SHORT_WAIT:
        yield Problem(
            f"a connection waits {found} ms for the file's lock, and fails then",
            'create_engine(url, connect_args={"timeout": 30})',
        )


@check("sqlite-read-only", "error")
def read_only(subject: Subject) -> Iterator[Problem]:
    """The file is open read-only, by `mode=ro` or `PRAGMA query_only`, and cannot be locked."""
    driver = subject.connection.connection.driver_connection
    opened = "mode=ro" in str(subject.engine.url) or "immutable=1" in str(subject.engine.url)
    if driver is not None and (opened or subject.ask("PRAGMA query_only")):
        yield Problem(
            "the file is opened read-only, where nothing can be locked",
            "open it without mode=ro, and without PRAGMA query_only; or read with SnapshotRead",
        )


@check("sqlite-synchronous", "warning")
def synchronous(subject: Subject) -> Iterator[Problem]:
    """`PRAGMA synchronous = OFF`: a power failure can corrupt the file."""
    if int(subject.ask("PRAGMA synchronous")) == 0:
        yield Problem(
            "a loss of power can corrupt the file: synchronous is OFF",
            "PRAGMA synchronous = NORMAL; in WAL mode, else FULL",
        )


@check("sqlite-foreign-keys", "info")
def foreign_keys(subject: Subject) -> Iterator[Problem]:
    """SQLite does not check foreign keys (`PRAGMA foreign_keys`): a part may outlive its header."""
    if not subject.ask("PRAGMA foreign_keys"):
        yield Problem(
            "foreign keys are not checked on this connection",
            "PRAGMA foreign_keys = ON; in a listener of the engine's event connect",
        )


@check("sqlite-version", "warning")
def version(subject: Subject) -> Iterator[Problem]:
    """The library is older than 3.34, the oldest tested version. Or the file is in WAL mode and the
    library older than 3.51.3 (3.50.7, 3.44.6), where two connections that write and checkpoint at
    once can, very rarely, corrupt the file.
    """
    found = tuple(map(int, str(subject.ask("SELECT sqlite_version()")).split(".")))
    if found < _OLDEST:
        yield Problem(
            f"SQLite {'.'.join(map(str, found))} is older than 3.34, the oldest that was tested",
            "upgrade SQLite; it comes with Python or the system",
        )
    if corrupts_wal(found) and subject.ask("PRAGMA journal_mode") == "wal":
        yield Problem(
            f"SQLite {'.'.join(map(str, found))} can, very rarely, corrupt a file in WAL mode",
            "upgrade SQLite to 3.51.3 or later (3.50.7, 3.44.6); it comes with Python or the system",
        )


def corrupts_wal(version: tuple[int, ...]) -> bool:
    """Return whether this version of SQLite has the WAL fault."""
    backports = any(
        version[:2] == backport[:2] and version >= backport for backport in _WAL_BACKPORTS
    )
    return version < _WAL_FIXED and not backports
