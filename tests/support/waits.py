"""Waits for a condition: above all, until the database reports that one actor waits for another."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import sqlalchemy as sa

from tests.support.actors import PATIENCE, Actor, Step
from tests.support.databases import Database

#: Waiter and holder, both as the server's connection ids.
_WAITS: Mapping[str, str] = {
    "postgresql": "SELECT pid, unnest(pg_blocking_pids(pid)) FROM pg_stat_activity",
    # Row locks, then named locks (GET_LOCK), which the server lists among the metadata locks.
    # MariaDB does so only with a plugin, so there the name comes from the waiter's statement. For
    # a row lock, MySQL names the thread that recorded it, which may be the waiter or a purge
    # thread; a transaction's table lock names its own thread.
    "mysql": """
        SELECT waiter.processlist_id, holder.processlist_id
        FROM performance_schema.data_lock_waits
        JOIN performance_schema.data_locks wanted ON wanted.lock_type = 'TABLE'
        AND wanted.engine_transaction_id = requesting_engine_transaction_id
        JOIN performance_schema.data_locks held ON held.lock_type = 'TABLE'
        AND held.engine_transaction_id = blocking_engine_transaction_id
        JOIN performance_schema.threads waiter ON waiter.thread_id = wanted.thread_id
        JOIN performance_schema.threads holder ON holder.thread_id = held.thread_id
        UNION SELECT waiter.processlist_id, holder.processlist_id
        FROM performance_schema.metadata_locks wanted
        JOIN performance_schema.metadata_locks held USING (object_type, object_name)
        JOIN performance_schema.threads waiter ON waiter.thread_id = wanted.owner_thread_id
        JOIN performance_schema.threads holder ON holder.thread_id = held.owner_thread_id
        WHERE object_type = 'USER LEVEL LOCK'
        AND wanted.lock_status = 'PENDING' AND held.lock_status = 'GRANTED'""",
    "mariadb": """
        SELECT waiter.trx_mysql_thread_id, holder.trx_mysql_thread_id
        FROM information_schema.innodb_lock_waits
        JOIN information_schema.innodb_trx waiter ON waiter.trx_id = requesting_trx_id
        JOIN information_schema.innodb_trx holder ON holder.trx_id = blocking_trx_id
        UNION SELECT waiter, holder FROM (
            SELECT id AS waiter, IS_USED_LOCK(
                LEFT(SUBSTRING_INDEX(SUBSTRING_INDEX(info, 'GET_LOCK(''', -1), '''', 1), 64)) AS holder
            FROM information_schema.processlist WHERE state = 'User lock') AS named
        WHERE holder IS NOT NULL""",
    "mssql": """
        SELECT session_id, blocking_session_id FROM sys.dm_exec_requests
        WHERE blocking_session_id <> 0""",
}

#: The same behind a pooler: the names that ConnectionLog gives to connections, which are numbers.
_WAITS_OF_NAMES = """
    SELECT CAST(waiter.application_name AS integer), CAST(holder.application_name AS integer)
    FROM pg_stat_activity waiter CROSS JOIN LATERAL unnest(pg_blocking_pids(waiter.pid)) blocker
    JOIN pg_stat_activity holder ON holder.pid = blocker
    WHERE waiter.application_name ~ '^[0-9]+$' AND holder.application_name ~ '^[0-9]+$'"""

# MariaDB answers from a copy, and renews it only after 0.1 s without a query (CACHE_MIN_IDLE in
# its trx0i_s.cc): a more eager poll would read the same old copy forever.
_POLL_SECONDS: Mapping[str, float] = {"mariadb": 0.12}
_POLL_SECONDS_ELSEWHERE, _FIRST_POLL_SECONDS = 0.02, 0.002

# Statements that SQLite runs without the file's write lock.
_NEVER_WAITS = re.compile(
    r"\s*(SELECT|PRAGMA(?! incremental_vacuum)|SAVEPOINT|RELEASE|ROLLBACK|BEGIN( DEFERRED)?\s*$)",
    re.IGNORECASE,
)


def wait_until(condition: Callable[[], object], *, poll_seconds: float = 0.005) -> None:
    """Poll until the condition holds.

    :raises AssertionError: it did not hold in time.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        threading.Event().wait(poll_seconds)


def wait_until_blocked(
    waiter: Actor[Any], holder: Actor[Any], step: Step[Any], *, seconds: float = PATIENCE
) -> None:
    """Return as soon as the database reports that ``waiter`` waits for ``holder`` in this step.

    A wait behind another waiter counts if that waiter waits for the holder in turn.

    SQLite has no server to ask, and waits in a client-side loop. For SQLite it is enough that
    the step began a statement that needs the file's write lock and has not ended, that the
    holder has a connection, and that a third connection is refused that lock at this moment. So a
    step that is merely slow after such a statement would look as if it waited.

    :param step: the waiter's running step.
    :raises AssertionError: the step ended instead, or nothing blocks it after ``seconds``.
    :raises BaseException: the step's own error.
    """
    deadline = time.monotonic() + seconds
    longest = poll_seconds_of(waiter.database)
    pause = longest if waiter.database.name in _POLL_SECONDS else _FIRST_POLL_SECONDS
    while True:
        if step.done():
            msg = f"{waiter} did not wait for {holder}; its step returned {step.result()!r}"
            raise AssertionError(msg)
        blocked, seen = _look(waiter, holder)
        if blocked:
            return
        if time.monotonic() > deadline:
            msg = f"{waiter} does not wait for {holder} after {seconds:g} s, nor is it done; {seen}"
            raise AssertionError(msg)
        futures.wait([step], timeout=pause)
        pause = min(2 * pause, longest)


def _look(waiter: Actor[Any], holder: Actor[Any]) -> tuple[bool, str]:
    """Return whether the waiter waits for the holder, and a description of what was seen."""
    if waiter.database.name == "sqlite":
        return _look_at_file(waiter, holder)
    waits = waits_at(waiter.database)
    mine, theirs = waiter.connection_ids(), holder.connection_ids()
    listed = ", ".join(f"{one} waits for {other}" for one, other in sorted(waits)) or "no waits"
    seen = f"{waiter} is {sorted(mine)}, {holder} is {sorted(theirs)}, the server sees: {listed}"
    return bool(_all_behind(mine, waits) & theirs), seen


def waits_at(database: Database) -> set[tuple[int, int]]:
    """Return all waits as connection ids, from a database with a server."""
    query = _WAITS_OF_NAMES if database.pooled else _WAITS[database.name]
    with database.poller().connect() as connection:
        rows = connection.execute(sa.text(query))
        # MySQL has no id for its own threads, and for threads that have just ended.
        return {
            (int(one), int(other)) for one, other in rows if one is not None and other is not None
        }


def poll_seconds_of(database: Database) -> float:
    """Return the seconds between two polls of its waits."""
    return _POLL_SECONDS.get(database.name, _POLL_SECONDS_ELSEWHERE)


def _all_behind(starts: frozenset[int], waits: set[tuple[int, int]]) -> set[int]:
    """Follow the waits from these connections to every connection that they wait for."""
    reached: set[int] = set()
    front = set(starts)
    while front:
        front = {other for one, other in waits if one in front} - reached
        reached |= front
    return reached


def _look_at_file(waiter: Actor[Any], holder: Actor[Any]) -> tuple[bool, str]:
    statement = waiter.database.connections.statement_of(waiter.thread_id)
    taken = _write_lock_is_taken(sa.make_url(waiter.database.url).database)
    lock = "taken" if taken else "free"
    seen = f"{waiter} has begun {statement!r}, and the file's write lock is {lock}"
    needs_lock = statement is not None and not _NEVER_WAITS.match(statement)
    return needs_lock and taken and bool(holder.connection_ids()), seen


def _write_lock_is_taken(path: str | None) -> bool:
    connection = sqlite3.connect(path or "", timeout=0, isolation_level=None)
    with contextlib.closing(connection):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            # Python 3.10 does not report the code; nothing else can refuse this statement.
            code = getattr(exc, "sqlite_errorcode", 5)
            if code & 0xFF != 5:  # SQLITE_BUSY, plain or extended
                raise
            return True
        connection.execute("ROLLBACK")
        return False
