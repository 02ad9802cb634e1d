"""MySQL 8 and later, and partly 5.7: PyMySQL, mysqlclient, aiomysql, asyncmy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, Select, Table, TextClause, bindparam, text
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from ..errors import DeadlockDetected, LockNotAvailable
from ..options import MODIFIERS, LockOptions, milliseconds
from ..sqlalchemy_internals import hint_comments_of, with_hint_comment
from .base import Ends, ErrorCode, Limit, MaxParameters, NativeCode, Reach
from .connection import ask_driver, other_connection
from .error_codes import code_of
from .innodb import (
    INNODB_CODES,
    InnoDBErrors,
    InnoDBHoldLimit,
    InnoDBLocks,
    InnoDBMonitoring,
    InnoDBStatements,
    InnoDBWaits,
)
from .innodb_named_locks import InnoDBNamedLocks
from .innodb_tables import StorageEngine
from .named_locks import recent_keys
from .names import quoted_name
from .waits import text_with_numbers

# NOWAIT, SKIP LOCKED, FOR SHARE and OF: https://dev.mysql.com/doc/relnotes/mysql/8.0/en/news-8-0-1.html
HAS_MODIFIERS = (8, 0, 1)

# The server writes line breaks in names and comments as \n.
_ENGINE = re.compile(r"^\) ENGINE=(\w+)", re.MULTILINE)
_TABLEACCESS_DENIED = 1142  # ER_TABLEACCESS_DENIED_ERROR
# For a row lock, MySQL names the thread that recorded it: the waiter if the lock was implicit (on a
# row just inserted), or a purge thread.  So the thread comes from the transaction's lock on the
# table, which the transaction itself takes first.
#
# A GRANTED lock on the row itself, not on the gap before it, which excludes the requested lock.
# "X" is the row and its gap, "X,REC_NOT_GAP" the row alone.
_HOLDERS = text("""
    SELECT /*+ MAX_EXECUTION_TIME(1000) */ t.processlist_id, TRUE, MAX(certain) FROM (
    SELECT own.thread_id, l.lock_type = 'TABLE' OR (l.index_name = 'PRIMARY'
    AND l.lock_data IN :keys AND l.lock_status = 'GRANTED' AND l.lock_mode NOT LIKE '%,GAP%'
    AND (l.lock_mode LIKE 'X%' OR NOT :shared)) AS certain
    FROM performance_schema.data_locks AS l JOIN performance_schema.data_locks AS own
    ON own.engine_transaction_id = l.engine_transaction_id AND own.engine = l.engine
    AND own.lock_type = 'TABLE'
    WHERE l.object_schema = COALESCE(:schema, DATABASE()) AND l.object_name = :name
    AND (l.lock_type = 'RECORD' OR l.lock_mode IN ('X', 'S'))
    UNION ALL SELECT owner_thread_id, 1 FROM performance_schema.metadata_locks
    WHERE object_type = 'TABLE' AND object_schema = COALESCE(:schema, DATABASE())
    AND object_name = :name AND lock_type IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE',
    'SHARED_NO_WRITE', 'SHARED_READ_ONLY')) AS held
    LEFT JOIN performance_schema.threads AS t ON t.thread_id = held.thread_id
    GROUP BY t.processlist_id""").bindparams(bindparam("keys", expanding=True))
_CONNECTIONS = text("""
    SELECT /*+ MAX_EXECUTION_TIME(1000) */ t.processlist_id, processlist_user,
    (SELECT attr_value FROM performance_schema.session_connect_attrs AS a
    WHERE a.processlist_id = t.processlist_id AND attr_name = 'program_name' LIMIT 1),
    processlist_command,
    (SELECT timer_wait / 1e12 FROM performance_schema.events_transactions_current AS x
    WHERE x.thread_id = t.thread_id AND x.state = 'ACTIVE' LIMIT 1),
    (SELECT sql_text FROM performance_schema.events_statements_current AS s
    WHERE s.thread_id = t.thread_id ORDER BY event_id LIMIT 1),
    processlist_host
    FROM performance_schema.threads AS t
    WHERE t.processlist_id IN :ids""").bindparams(bindparam("ids", expanding=True))
# One row per waiter: a queue of n waiters has n * n / 2 rows in data_lock_waits.
_ROW_WAITS = text("""
    SELECT /*+ MAX_EXECUTION_TIME(1000) SET_VAR(group_concat_max_len = 4294967295) */
    w.requesting, w.blocking,
    l.object_schema <> COALESCE(DATABASE(), '') AS elsewhere, l.object_schema, l.object_name,
    CASE WHEN l.index_name = 'PRIMARY' THEN l.lock_data END
    FROM (SELECT engine, requesting_engine_lock_id AS lock_id,
    requesting_engine_transaction_id AS requesting,
    GROUP_CONCAT(blocking_engine_transaction_id) AS blocking
    FROM performance_schema.data_lock_waits GROUP BY engine, lock_id, requesting) AS w
    JOIN performance_schema.data_locks AS l
    ON l.engine_lock_id = w.lock_id AND l.engine = w.engine""")
_OWNERS = text("""
    SELECT /*+ MAX_EXECUTION_TIME(1000) */ DISTINCT t.id, own.thread_id
    FROM (SELECT engine, requesting_engine_transaction_id AS id
    FROM performance_schema.data_lock_waits
    UNION SELECT engine, blocking_engine_transaction_id
    FROM performance_schema.data_lock_waits) AS t
    JOIN performance_schema.data_locks AS own ON own.lock_type = 'TABLE'
    AND own.engine_transaction_id = t.id AND own.engine = t.engine""")
# Tables and named locks.  Here an exclusive request blocks others even while it waits itself.
_OTHER_WAITS = text("""
    SELECT /*+ MAX_EXECUTION_TIME(1000) */ DISTINCT p.owner_thread_id, g.owner_thread_id,
    p.object_schema <> COALESCE(DATABASE(), ''), p.object_schema,
    CASE WHEN p.object_type = 'TABLE' THEN p.object_name END,
    CASE WHEN p.object_type <> 'TABLE' THEN p.object_name END
    FROM performance_schema.metadata_locks AS p JOIN performance_schema.metadata_locks AS g
    ON g.object_type = p.object_type AND g.object_schema <=> p.object_schema
    AND g.object_name = p.object_name AND g.owner_thread_id <> p.owner_thread_id
    WHERE p.lock_status = 'PENDING' AND p.object_type IN ('TABLE', 'USER LEVEL LOCK') AND (
    g.lock_type IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE', 'SHARED_NO_WRITE', 'SHARED_READ_ONLY')
    AND (g.lock_status = 'GRANTED' OR p.lock_type NOT IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE',
    'SHARED_NO_WRITE', 'SHARED_READ_ONLY'))
    OR g.lock_status = 'GRANTED' AND p.lock_type IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE',
    'SHARED_NO_WRITE', 'SHARED_READ_ONLY'))""")
_THREADS = text("""
    SELECT t.thread_id, t.processlist_id,
    (SELECT timer_wait / 1e12 FROM performance_schema.events_statements_current AS s
    WHERE s.thread_id = t.thread_id ORDER BY event_id LIMIT 1)
    FROM performance_schema.threads AS t
    WHERE t.thread_id IN :threads""").bindparams(bindparam("threads", expanding=True))
_EXECUTION_TIME = re.compile(r"\bMAX_EXECUTION_TIME\s*\(\s*(\d+)\s*\)", re.IGNORECASE)
_ERROR_DURING_COMMIT = 1180  # ER_ERROR_DURING_COMMIT
_ROLLBACK_DURING_COMMIT = 3101  # ER_TRANSACTION_ROLLBACK_DURING_COMMIT
_HA_ERR_LOCK_DEADLOCK = re.compile(r"\b149\b")
_ERROR_OF_ENGINE = frozenset({1030, 1181})  # ER_GET_ERRNO, ER_ERROR_DURING_ROLLBACK
_HA_ERR_NO_SAVEPOINT = re.compile(r"\b153\b")


class MySQLMonitoring(InnoDBMonitoring):
    holders_query = _HOLDERS
    connections_query = _CONNECTIONS

    def waits(self, connection: Connection) -> Iterable[Sequence[Any]]:
        waits = [*_row_waits(connection)]
        for waiter, blocker, *place in connection.execute(_OTHER_WAITS):
            waits.append((waiter, [blocker], *place))
        waiting = {wait[0] for wait in waits}
        threads = _connections_of(connection, waiting.union(*(wait[1] for wait in waits)))
        keys = recent_keys()
        for waiter, blockers, elsewhere, schema, name, key in waits:
            pid, seconds = threads.get(waiter, (None, None))
            table = f"{schema}.{name}" if elsewhere and name else name
            known = key if table else keys.get(key, key)
            for other in _ids(blockers, threads, waiting):
                if pid is not None:
                    yield pid, other, table, known, seconds


def _ids(
    blockers: Iterable[int], threads: Mapping[int, tuple[int | None, Any]], waiting: set[int]
) -> Iterator[int]:
    """Yield the connections of these threads, except ended threads and the server's own.

    0 stands for an XA transaction prepared by a thread that has ended.  It does not wait.
    """
    for blocker in blockers:
        pid, _ = threads.get(blocker, (None if blocker in waiting else 0, None))
        if pid is not None:
            yield pid


def _row_waits(connection: Connection) -> Iterator[tuple[Any, ...]]:
    rows = connection.execute(_ROW_WAITS).all()
    found = connection.execute(_OWNERS) if rows else ()
    owners = {str(transaction): thread for transaction, thread in found}
    for requesting, blocking, *place in rows:
        if str(requesting) in owners:
            blockers = [owners[number] for number in str(blocking).split(",") if number in owners]
            yield owners[str(requesting)], blockers, *place


def _connections_of(
    connection: Connection, threads: set[int]
) -> Mapping[int, tuple[int | None, Any]]:
    if not threads:
        return {}
    rows = connection.execute(_THREADS, {"threads": sorted(threads)})
    return {thread: (pid, seconds) for thread, pid, seconds in rows}


def _shown_engine(shown: Sequence[Any]) -> StorageEngine | None:
    """Return the storage engine in the answer to SHOW CREATE TABLE, or None."""
    _, definition, *of_view = shown
    if of_view:
        return StorageEngine(None)
    if not isinstance(definition, str):
        definition = bytes(definition).decode()  # mysql-connector returns bytes
    found = _ENGINE.search(definition)
    return StorageEngine(found[1]) if found else None


class MySQLErrors(InnoDBErrors):
    # https://dev.mysql.com/doc/mysql-errors/en/server-error-reference.html
    codes = {
        **INNODB_CODES,
        1205: ErrorCode(LockNotAvailable, limit=Limit.LOCK),  # ER_LOCK_WAIT_TIMEOUT
        3572: ErrorCode(LockNotAvailable),  # ER_LOCK_NOWAIT
        3058: ErrorCode(DeadlockDetected),  # ER_USER_LOCK_DEADLOCK, of GET_LOCK
        # for an account that may read no table, or only columns
        _TABLEACCESS_DENIED: ErrorCode(
            monitoring="the account needs GRANT SELECT ON performance_schema.*"
        ),
        # ER_NO_SUCH_TABLE
        1146: ErrorCode(monitoring="it needs MySQL 8.0.1, or its Performance Schema"),
        # ER_QUERY_TIMEOUT, of MAX_EXECUTION_TIME
        3024: ErrorCode(in_lock=LockNotAvailable, limit=Limit.STATEMENT),
        3169: ErrorCode(ends=Ends.CONNECTION),  # ER_SESSION_WAS_KILLED: by KILL, during a statement
        # ER_CLIENT_INTERACTION_TIMEOUT, of wait_timeout
        4031: ErrorCode(ends=Ends.CONNECTION_BEFORE),
    }

    def native_code(self, orig: BaseException) -> NativeCode | None:
        code = super().native_code(orig)
        # Another member of the group committed first.  1180 can also mean a full disk: InnoDB's
        # number in the text distinguishes the two.
        if code == _ROLLBACK_DURING_COMMIT or (
            code == _ERROR_DURING_COMMIT and _HA_ERR_LOCK_DEADLOCK.search(str(orig.args[-1]))
        ):
            return 1213  # ER_LOCK_DEADLOCK
        # The savepoint ended with its transaction, which conflicted with another member of the
        # group; MySQL reports it for RELEASE SAVEPOINT and ROLLBACK TO SAVEPOINT.
        if code in _ERROR_OF_ENGINE and _HA_ERR_NO_SAVEPOINT.search(str(orig.args[-1])):
            return 1213
        return code


class MySQLStatements(InnoDBStatements):
    # Far more exceed range_optimizer_max_mem_size, and the whole table is read and locked.
    max_parameters = MaxParameters(8_000)


class OldMySQLStatements(MySQLStatements):
    """The SELECTs of MySQL 5.7, which has no ``FOR UPDATE OF``."""

    reach = Reach(0)


class MySQLWaits(InnoDBWaits):
    def timed(self, statement: Select[Any], lock: LockOptions, seconds: float) -> Select[Any]:
        # innodb_lock_wait_timeout counts whole seconds, and a connection setting would return to
        # the pool; the optimizer hint avoids both.  MySQL reads only the first comment after
        # SELECT, and of two limits in it the first.
        program = " ".join(hint_comments_of(statement))
        limits = [milliseconds(seconds), *map(int, _EXECUTION_TIME.findall(program))]
        others = _EXECUTION_TIME.sub("", program).strip()
        hints = f"MAX_EXECUTION_TIME(:doclock_limit) {others}".rstrip()
        comment = text_with_numbers(f"/*+ {hints} */", doclock_limit=min(filter(None, limits)))
        return with_hint_comment(statement, comment)


def _wait_for_name(seconds: float) -> TextClause:
    # GET_LOCK counts whole seconds, and rounds 0.3 to 0, which does not wait.
    whole = math.ceil(seconds)
    if whole == seconds:
        return text_with_numbers("SELECT GET_LOCK(:name, :whole)", whole=whole)
    return text_with_numbers(
        "SELECT /*+ MAX_EXECUTION_TIME(:limit) */ GET_LOCK(:name, :whole)",
        limit=milliseconds(seconds),
        whole=whole,
    )


class MySQLLocks(InnoDBLocks):
    name = "mysql"
    monitoring = MySQLMonitoring()
    errors = MySQLErrors()
    statements = MySQLStatements()
    waits = MySQLWaits()
    named_locks = InnoDBNamedLocks(_wait_for_name, errors)
    # MySQL limits idle connections, not idle transactions; its limit ends both:
    # https://dev.mysql.com/doc/refman/en/server-system-variables.html#sysvar_wait_timeout
    # Without the CAST, the value would not be an integer: error 1232.
    hold_limit = InnoDBHoldLimit(
        "wait_timeout", "CAST(LEAST(@@SESSION.wait_timeout, {limit}) AS UNSIGNED)"
    )

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        # SQLAlchemy before 2.0.45 renders LOCK IN SHARE MODE OF .., which no MySQL accepts:
        # https://github.com/sqlalchemy/sqlalchemy/issues/10134
        if not hasattr(dialect, "use_mysql_for_share"):
            needed = "SharedRead on MySQL needs SQLAlchemy 2.0.45 or newer"
            self.refused = {LockOptions.SharedRead: needed}
        version = self.server_version or HAS_MODIFIERS
        if version < HAS_MODIFIERS:
            self.statements = OldMySQLStatements()
            needed = f"{{}} needs MySQL 8.0.1, and this server is {version}"
            self.refused = {
                **{option: needed.format(option) for option in MODIFIERS},
                **self.refused,
            }

    def storage_engine(self, connection: Connection, table: Table) -> StorageEngine | None:
        # Unlike information_schema, it opens no read view.
        statement = f"SHOW CREATE TABLE {quoted_name(connection, table)}"
        try:
            with self.asking(connection) as asked:
                (shown,) = ask_driver(asked, statement)
        except DBAPIError as error:
            if code_of(self.errors, error) != _TABLEACCESS_DENIED:
                raise
        else:
            found = _shown_engine(shown)
            if found is not None:
                return found
        return super().storage_engine(connection, table)

    def asking_schema(self, connection: Connection) -> AbstractContextManager[Connection]:
        # Since 8.0, information_schema consists of InnoDB tables: reading them begins a
        # transaction, and at REPEATABLE READ opens its read view.
        return other_connection(connection)
