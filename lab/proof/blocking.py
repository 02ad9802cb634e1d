"""Two sessions at one row: who waits for whom, as the server reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from lab.proof.page import Part, table
from lab.proof.tables import Row, tables
from sa_doclock import LockingSession, LockNotAvailable, LockOptions, lock_waits
from tests.support.waits import wait_until

FOR_UPDATE = LockOptions.ForUpdate


#: The server's own report on the two connections, read without this library.
_REQUESTS: Mapping[str, str] = {
    "mssql": """
        SELECT session_id, blocking_session_id, wait_type, wait_resource
        FROM sys.dm_exec_requests WHERE blocking_session_id <> 0""",
    "postgresql": """
        SELECT pid, pg_blocking_pids(pid) AS blocking, wait_event_type, wait_event
        FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0""",
}
_LOCKS: Mapping[str, str] = {
    "mssql": """
        SELECT request_session_id, resource_type, request_mode, request_status, resource_description
        FROM sys.dm_tran_locks WHERE resource_database_id = DB_ID() AND resource_type <> 'DATABASE'
        ORDER BY request_session_id, resource_type""",
}


def blocking(engine: sa.Engine, lock: LockOptions = FOR_UPDATE) -> Part:
    """Lock a row, let another session wait for it, and query the server.

    :param lock: the first session's lock; with a lock other than ForUpdate, the part must not hold.
    """
    if engine.dialect.name not in _REQUESTS:
        text = f"{engine.dialect.name} has no server that is asked here."
        return Part("Blocking", [text])
    with tables(engine), ThreadPoolExecutor(1) as elsewhere:
        with LockingSession(engine) as holder:
            row = holder.get_one_entity(Row, 1, lock)
            refused = _is_refused(engine)
            skipped = _is_skipped(engine)
            waiter = elsewhere.submit(_lock_and_read, engine)
            try:
                wait_until(lambda: waiter.done() or _rows(engine, _REQUESTS))
                lines = list(_seen(engine))
            finally:
                row.total = 2
                holder.save_changes()
        read = waiter.result()
    blocked = any(lines)
    facts = {
        "a second lock waits, as the server says": blocked,
        "after the wait it reads what the first has saved": read == 2,
        "with NoWait it is refused": refused,
        "with SkipLocked the row is left out": skipped,
    }
    reported = [f"- {'yes' if holds else '**NO**'}: {fact}" for fact, holds in facts.items()]
    return Part("Blocking", [*reported, "", *lines], holds=all(facts.values()))


def _lock_and_read(engine: sa.Engine) -> int:
    with LockingSession(engine) as session:
        return session.get_one_entity(Row, 1, FOR_UPDATE, lock_timeout=60).total


def _is_refused(engine: sa.Engine) -> bool:
    with LockingSession(engine) as session:
        try:
            session.get_entity(Row, 1, FOR_UPDATE | LockOptions.NoWait)
        except LockNotAvailable:
            return True
        return False


def _is_skipped(engine: sa.Engine) -> bool:
    with LockingSession(engine) as session:
        rows = session.entity_set(Row, FOR_UPDATE | LockOptions.SkipLocked).order_by(Row.id)
        return [row.id for row in session.scalars(rows)] == [2]


def _seen(engine: sa.Engine) -> Iterator[str]:
    """Yield the server's rows while one session waits; nothing if it lists no waiter."""
    requests = _rows(engine, _REQUESTS)
    if not requests:
        return
    yield "While one waits, the server lists:"
    yield ""
    yield from table(requests)
    if locks := _rows(engine, _LOCKS):
        yield ""
        yield from table(locks)
    yield ""
    yield "And lock_waits() makes of it:"
    yield ""
    for wait in lock_waits(engine):
        yield f"- {wait.waiter.connection_id} waits for {wait.blocker.connection_id}, table {wait.table}, key {wait.key}"


def _rows(engine: sa.Engine, queries: Mapping[str, str]) -> list[Mapping[str, object]]:
    query = queries.get(engine.dialect.name)
    if query is None:
        return []
    with engine.connect() as connection:
        return [dict(row) for row in connection.exec_driver_sql(query).mappings()]
