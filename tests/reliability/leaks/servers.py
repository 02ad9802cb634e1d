"""The numbers of sessions and of locks, from the database itself."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from tests.support.databases import Database

_POSTGRESQL = sa.text("""
    SELECT count(*), count(locks), coalesce(sum(locks), 0)
    FROM pg_stat_activity LEFT JOIN (
        SELECT pid, count(*) AS locks FROM pg_locks GROUP BY pid) AS held USING (pid)
    WHERE datname = current_database() AND application_name <> 'who looks'""")


def left_at_the_server(database: Database) -> Mapping[str, int]:
    """Count the sessions and locks of everybody; nobody else is at work."""
    return _look_at_file(database) if database.name == "sqlite" else _ask_postgresql(database)


def _ask_postgresql(database: Database) -> Mapping[str, int]:
    with database.observer().connect() as connection:
        # Who has looked before may be there still: a session ends in its own time.
        connection.exec_driver_sql("SET application_name = 'who looks'")
        row = connection.execute(_POSTGRESQL).one()
    return dict(zip(("sessions", "sessions with locks", "locks"), map(int, row), strict=True))


def _look_at_file(database: Database) -> Mapping[str, int]:
    path = Path(sa.make_url(database.url).database or "")
    return {"locks": int(_is_locked(path)), "sessions": _times_open(path)}


def _is_locked(path: Path) -> bool:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    with contextlib.closing(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        try:
            connection.execute(f"PRAGMA user_version = {version}")
        except sqlite3.OperationalError:
            return True  # somebody writes
        # Copies everything back, and begins the log anew: what nobody can who has a reader behind.
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)


def _times_open(path: Path) -> int:
    files = Path("/proc/self/fd")
    if not files.exists():
        return 0
    targets = []
    for file in files.iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            targets.append(file.readlink())
    return targets.count(path)
