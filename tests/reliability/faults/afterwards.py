"""The database and the pool after a run: nothing lost, nothing half saved, all connections returned."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.reliability.faults.model import FOLDERS, Attempt, Folder, Log, Mark, Sheet
from tests.reliability.history.checker import check
from tests.reliability.history.record import History, Outcome, Read

# --------------------------------------------------------------------------------------------------
# Compares the database with the logs afterwards: nothing lost, nothing half-written.

Marks = Mapping[int, Mapping[int, int]]
"""By attempt: by folder, the change of its total."""

_TOTALS = select(Folder.id, Folder.total)
_SUMS = select(Sheet.folder_id, func.sum(Sheet.value).label("total")).group_by(Sheet.folder_id)


@dataclass
class Found:
    """The errors found, in words.

    :ivar lost: acknowledged but missing.
    :ivar inconsistent: wrong sums, or changes that are partial, doubled, or present despite an error.
    """

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    inconsistent: list[str] = field(default_factory=list)


def look_on_disk(connection: Connection, log: Log, *, was_killed: bool = False) -> Found:
    """Compare, on a new connection.

    :param was_killed: the server, in the meantime.
    """
    marks = _marks(connection)
    attempts = list(log.updates())
    found = Found(sum(attempt.acknowledged for attempt in attempts))
    found.lost += _lost(attempts, marks)
    found.inconsistent += [
        *log.broken_reads,
        *_half_there(attempts, marks),
        *_twice(attempts, marks),
        *_not_adding_up(connection, marks),
    ]
    lost = _decide(attempts, marks)
    history = History(
        attempt.transaction
        for attempt in log.attempts
        if not (was_killed and _saw_too_much(attempt, lost))
    )
    found.inconsistent += map(str, check(history))
    return found


def _marks(connection: Connection) -> Marks:
    marks: dict[int, dict[int, int]] = defaultdict(dict)
    for attempt, folder, delta in connection.execute(
        select(Mark.attempt, Mark.folder_id, Mark.delta)
    ):
        marks[attempt][folder] = delta
    return marks


def _lost(attempts: Iterable[Attempt], marks: Marks) -> Iterator[str]:
    for attempt in attempts:
        if attempt.acknowledged and not marks.get(attempt.number):
            yield f"attempt {attempt.number} was acknowledged and is not there"


def _half_there(attempts: Iterable[Attempt], marks: Marks) -> Iterator[str]:
    for attempt in attempts:
        there = marks.get(attempt.number)
        if there and there != attempt.marks:
            yield f"attempt {attempt.number} meant {attempt.marks}, and left {there}"
        elif there and attempt.outcome is Outcome.ABORTED:
            yield f"attempt {attempt.number} failed before its commit, and is there"


def _twice(attempts: Iterable[Attempt], marks: Marks) -> Iterator[str]:
    there = Counter(attempt.update for attempt in attempts if marks.get(attempt.number))
    for update, times in there.items():
        if times > 1:
            yield f"update {update} was done {times} times"


def _not_adding_up(connection: Connection, marks: Marks) -> Iterator[str]:
    totals = {row.id: row.total for row in connection.execute(_TOTALS)}
    sums = {row.folder_id: row.total for row in connection.execute(_SUMS)}
    for folder in FOLDERS:
        marked = sum(deltas.get(folder, 0) for deltas in marks.values())
        if not totals[folder] == sums[folder] == marked:
            yield (
                f"folder {folder} has the total {totals[folder]}, sheets of {sums[folder]}, and "
                f"marks of {marked}"
            )


def _decide(attempts: Sequence[Attempt], marks: Marks) -> set[int]:
    """Decide the outcome of each commit whose answer was lost; its time stays unknown.

    :returns: the attempts that are missing.
    """
    ticks = (max(one.transaction.began, one.transaction.ended) for one in attempts)
    last = max(ticks, default=0)
    unknown = [attempt for attempt in attempts if attempt.outcome is Outcome.UNKNOWN]
    for attempt in unknown:
        there = bool(marks.get(attempt.number))
        attempt.transaction.outcome = Outcome.COMMITTED if there else Outcome.ABORTED
        attempt.transaction.ended = last + 1
    return {attempt.number for attempt in unknown if not marks.get(attempt.number)}


def _saw_too_much(attempt: Attempt, lost: set[int]) -> bool:
    """Return whether a reader saw a commit that was not on disk when the server was killed.

    InnoDB releases a transaction's locks and shows its writes before it flushes the log.
    A reader needs no flush; a writer's own commit reaches the disk later in the log, or not at all.
    """
    reads = (one for one in attempt.transaction.operations if isinstance(one, Read))
    return not attempt.update and any(one.version.writer in lost for one in reads)


# --------------------------------------------------------------------------------------------------
# The pool afterwards: all connections are back, and none keeps a setting of ours.

#: Settings that must be equal on a connection of the pool and on a new connection.
_SETTINGS: Mapping[str, str] = {
    "postgresql": """
        SELECT current_setting('transaction_isolation'), current_setting('lock_timeout'),
        current_setting('statement_timeout'), current_setting('default_transaction_isolation'),
        current_setting('default_transaction_read_only'),
        (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
    """,
    "mysql": """
        SELECT @@session.transaction_isolation, @@session.innodb_lock_wait_timeout,
        @@session.lock_wait_timeout, @@session.max_execution_time, @@session.autocommit,
        @@session.transaction_read_only
    """,
    "mariadb": """
        SELECT @@session.tx_isolation, @@session.innodb_lock_wait_timeout,
        @@session.lock_wait_timeout, @@session.max_statement_time, @@session.autocommit,
        @@session.tx_read_only
    """,
    "sqlite": "SELECT * FROM pragma_busy_timeout, pragma_query_only, pragma_read_uncommitted",
}


def pool_is_wrong(engine: Engine, fresh: Engine) -> list[str]:
    """Return the faults of the pool of ``engine``; afterwards it has no dead connection.

    :param fresh: an engine whose next connection is new.
    """
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    if pool.checkedout():
        return [f"{pool.checkedout()} connections have not come back"]
    with fresh.connect() as connection:
        wanted = _settings(connection)
    _, wrong = _looked_at(engine, pool.checkedin(), wanted)  # at once: a dead one ends them all
    # Before the second time, the pool replaced a connection that was found dead.
    dead, wrong_now = _looked_at(engine, pool.size(), wanted)
    if dead:
        wrong_now.append(f"{dead} connections are dead, and stay in the pool")
    return wrong + wrong_now


def _looked_at(
    engine: Engine, connections: int, wanted: tuple[object, ...]
) -> tuple[int, list[str]]:
    with ExitStack() as out:
        taken = [out.enter_context(engine.connect()) for _ in range(connections)]
        found = [_settings_or_error(connection) for connection in taken]
    errors = [one for one in found if isinstance(one, sa.exc.DBAPIError)]
    wrong = [f"can do nothing: {error}" for error in errors if not error.connection_invalidated]
    wrong += [
        f"has {one}, a new one {wanted}" for one in found if one not in errors and one != wanted
    ]
    return len(errors), [f"a connection of the pool {one}" for one in wrong]


def _settings_or_error(connection: Connection) -> tuple[object, ...] | sa.exc.DBAPIError:
    try:
        return _settings(connection)
    except sa.exc.DBAPIError as error:
        return error


def _settings(connection: Connection) -> tuple[object, ...]:
    dialect = connection.dialect
    product = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    found = tuple(connection.exec_driver_sql(_SETTINGS[product]).one())
    connection.rollback()
    return found


# --------------------------------------------------------------------------------------------------
# Locks that remain after every client is gone.

#: Seconds that a server may take to notice a dead client.
PATIENCE = 30.0

#: Locks and transactions that the server knows of, except the observer's own.
_LEFT: Mapping[str, str] = {
    "postgresql": """
        SELECT 'lock ' || locktype || ' ' || mode FROM pg_locks
        WHERE pid <> pg_backend_pid() AND database = (
            SELECT oid FROM pg_database WHERE datname = current_database())
        UNION ALL SELECT 'transaction of ' || pid FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND (xact_start IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type = 'client backend'
    """,
    "mysql": """
        SELECT CONCAT('transaction of ', trx_mysql_thread_id) FROM information_schema.innodb_trx
        UNION ALL SELECT CONCAT('lock ', lock_type, ' ', lock_mode) FROM performance_schema.data_locks
        UNION ALL SELECT CONCAT('named lock ', object_name) FROM performance_schema.metadata_locks
        WHERE object_type = 'USER LEVEL LOCK'
    """,
    "mariadb": """
        SELECT CONCAT('transaction of ', trx_mysql_thread_id) FROM information_schema.innodb_trx
        UNION ALL SELECT CONCAT('lock ', lock_mode) FROM information_schema.innodb_locks
    """,
}


def locks_left(engine: Engine) -> list[str]:
    """Return what still holds the folders or their named lock; empty once all is free.

    A server takes a while to notice that a client is dead.

    :param engine: a direct engine without a pool, unknown to the clients.
    """
    deadline = time.monotonic() + PATIENCE
    while left := _held(engine) or _on_server(engine):
        if time.monotonic() > deadline:
            break
        time.sleep(0.15)  # MariaDB renews its tables only after 0.1 s without a query
    return left


def _held(engine: Engine) -> list[str]:
    left = []
    with LockingSession(engine, lock_timeout=0) as session:
        for folder in FOLDERS:
            try:
                session.get_one_entity(Folder, folder, LockOptions.ForUpdate)
            except LockNotAvailable as error:
                left.append(str(error))
            session.rollback()
        try:
            session.lock_key("faults")
        except LockNotAvailable as error:
            left.append(str(error))
        session.rollback()
    return left


def _on_server(engine: Engine) -> list[str]:
    with Session(engine) as session:
        asked = _LEFT.get(_product(session))
        return [] if asked is None else list(session.scalars(sa.text(asked)))


def _product(session: Session) -> str:
    dialect = session.connection().dialect
    return "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
