"""Checks of a pooler in front of PostgreSQL: clients may get another connection, or another server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from ...dialects import postgresql, side_connection
from ...dialects.base import READ_COMMITTED
from .check import Problem, Subject, check

# A pooler picks a client's connection, or server, at random.
_TRIES = 5

_HAS_STANDBY = "SELECT count(*) FROM pg_stat_replication WHERE NOT pg_is_in_recovery()"

# The start time identifies a server, whatever address leads to it.  The function is stable, so the
# pooler sends its statement to the server of reads.
_READS = "SELECT pg_postmaster_start_time()"
_LOCKS = "SELECT pg_postmaster_start_time() FROM (SELECT 1) AS no_row FOR UPDATE"
_LIMITS = (
    "SELECT pg_postmaster_start_time(), "
    "set_config('lock_timeout', current_setting('lock_timeout'), true)"
)

_TO_PRIMARY = (
    "have the pooler send all statements for this database to the primary; pgpool-II: "
    "database_redirect_preference_list = '{database}:primary'"
)

# pgpool-II answers this itself; a server, or PgBouncer in front of it, reports a syntax error.
_PGPOOL = "PGPOOL SHOW load_balance_mode"

# Without the settings that PgBouncer sets for each client.
_SET = (
    "SELECT name FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', "
    "'client_encoding', 'DateStyle', 'IntervalStyle', 'standard_conforming_strings', 'TimeZone')"
)


class _Servers(NamedTuple):
    """The servers that executed a locking statement, and other statements."""

    locks: Any
    reads_under_lock: Any
    reads: Any
    limits: Any


def _servers(subject: Subject) -> Iterator[_Servers]:
    """Yield the servers of some connections; none if the server has no standby."""
    if not subject.ask(_HAS_STANDBY):
        return
    for _ in range(_TRIES):
        with _new_connection(subject) as connection:
            transactions = ((_LOCKS, _READS), (_READS,), (_LIMITS,))
            found = []
            for queries in transactions:
                found += [connection.execute(text(query)).scalar() for query in queries]
                connection.rollback()
        yield _Servers(*found)


def _new_connection(subject: Subject) -> AbstractContextManager[Connection]:
    return side_connection(subject.engine, {"isolation_level": READ_COMMITTED})


@check("postgresql-standby-under-lock", "error")
def standby_under_lock(subject: Subject) -> Iterator[Problem]:
    """A pooler sends a part of a lock's statements to another server, as pgpool-II does with
    `disable_load_balance_on_write = 'dml_adaptive'` (reads after the lock may be older) or with a
    `write_function_list` or `read_only_function_list` (`lock_timeout=` and `hold_limit=` have no
    effect). The check runs if a standby streams from the server, over up to five connections.
    """
    cure = _TO_PRIMARY.format(database=subject.engine.url.database)
    for found in _servers(subject):
        if found.reads_under_lock != found.locks:
            yield Problem(
                "a session's reads after a lock come from another server, which may not "
                "have the last changes",
                cure,
            )
        if found.limits != found.locks:
            yield Problem(
                "set_config() is executed by another server than the locks: lock_timeout= and "
                "hold_limit= have no effect",
                cure,
            )
        if len(set(found)) > 1:  # this connection has shown it
            return


@check("postgresql-standby-reads", "warning")
def standby_reads(subject: Subject) -> Iterator[Problem]:
    """A pooler sends statements that lock nothing to a standby, as pgpool-II does. A SnapshotRead
    may miss the last commit, and read from two servers. `idle_in_transaction_session_timeout` ends
    the standby's connection while the program waits at the primary. The check runs as above.
    """
    if _balances_reads(subject):
        yield Problem(
            "statements that lock nothing are executed by another server: a SnapshotRead may be "
            "older than the last commit",
            _TO_PRIMARY.format(database=subject.engine.url.database),
        )


def _balances_reads(subject: Subject) -> bool:
    return any(found.reads != found.locks for found in _servers(subject))


def cure_of_idle_limit(subject: Subject) -> str:
    """Return how to limit idle transactions without harm behind this pooler, or without one."""
    cure = "ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '60s'"
    if _balances_reads(subject):
        first = _TO_PRIMARY.format(database=subject.engine.url.database)
        cure = f"first {first}; then {cure}"
    if "hold_limit" not in _faults_of_pgpool(subject):
        cure += (
            "; or give the sessions a hold_limit: sessionmaker(engine, class_=LockingSession, "
            "hold_limit=60)"
        )
    return cure


@check("postgresql-pgpool", "warning")
def pgpool(subject: Subject) -> Iterator[Problem]:
    """pgpool-II is between the program and the server. After a failed COMMIT, the next statement on
    this connection fails too; with asyncpg, all of them. With psycopg 3, `stream_results=True`
    fails, and on PostgreSQL 17 or later a program whose `hold_limit` ended its transaction waits
    forever. Seen with pgpool-II 4.3.5; the check only finds pgpool-II. It runs if a standby streams
    from the server, or the driver was told another id of its connection.
    """
    faults = _faults_of_pgpool(subject)
    if faults:
        yield Problem(
            f"pgpool-II is in between, with these faults: {', '.join(faults.values())}",
            "; ".join(_CURES_OF_PGPOOL[name] for name in faults),
        )


_CURES_OF_PGPOOL = {
    "commit": "have no deferred constraints, or SET CONSTRAINTS ALL IMMEDIATE before COMMIT",
    "stream_results": "set no stream_results=True",
    "hold_limit": "give no hold_limit",
}


def _faults_of_pgpool(subject: Subject) -> Mapping[str, str]:
    """Return the features that fail with this driver and server; empty without pgpool-II."""
    # When pgpool-II reuses a connection, the client's id differs from the server's.  Without a
    # standby and a pooler, do not ask: the answer would be an error, which the server logs.
    if not _is_pooled(subject) and not subject.ask(_HAS_STANDBY):
        return {}
    with _new_connection(subject) as connection:
        if not _is_pgpool(connection):
            return {}
    faults = {"commit": "the next statement after a COMMIT that fails is refused"}
    if subject.connection.dialect.driver == "psycopg":
        faults["stream_results"] = "stream_results=True fails"
        if subject.version >= postgresql.HAS_TRANSACTION_TIMEOUT:
            faults["hold_limit"] = "it does not notice that a hold_limit has ended a transaction"
    return faults


def _is_pgpool(connection: Connection) -> bool:
    with suppress(Exception):  # the driver's syntax error
        if connection.dialect.driver == "asyncpg":  # its own execute() prepares nothing
            adapted: Any = connection.connection.dbapi_connection
            return bool(adapted.run_async(lambda driver: driver.execute(_PGPOOL)))
        return connection.exec_driver_sql(_PGPOOL).scalar() in ("on", "off")
    return False


def _is_pooled(subject: Subject) -> bool:
    """Return whether the server has another id for this connection than the driver was given."""
    monitoring = subject.strategy.monitoring
    reported = None if monitoring is None else monitoring.connection_id(subject.connection)
    return reported is not None and reported != _pid(subject.connection)


def _pools_by_transaction(subject: Subject) -> bool:
    """Return whether each transaction of a client may get another server connection."""
    if not _is_pooled(subject):
        return False
    seen = {_pid(subject.connection)}
    with _new_connection(subject) as other:
        for _ in range(_TRIES):
            if _pid(other) in seen:  # two clients share one server connection
                return True
            seen.add(_pid(subject.connection))
            if len(seen) > 1:
                return True
    return False


def _pid(connection: Connection) -> Any:
    connection.rollback()
    found = connection.execute(text("SELECT pg_backend_pid()")).scalar()
    connection.rollback()
    return found


@check("postgresql-prepared-statements", "warning")
def prepared_statements(subject: Subject) -> Iterator[Problem]:
    """The driver prepares statements on one server connection, and a pooler in transaction pooling
    executes them on another, where they are unknown, unless it supports this (PgBouncer 1.21,
    max_prepared_statements): psycopg after five executions, asyncpg always.
    """
    driver = subject.connection.connection.driver_connection
    if subject.connection.dialect.driver == "asyncpg":
        cure = (
            'connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0, '
            '"prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__"}'
        )
        probe = f"SELECT '{secrets.token_hex(8)}'"  # unique: clients share connections
        subject.ask(probe)
        asked = "SELECT count(*) FROM pg_prepared_statements WHERE statement = :probe"
        prepares = bool(subject.ask(asked, probe=probe))  # the server still has it
    else:
        cure = 'connect_args={"prepare_threshold": None}'
        prepares = getattr(driver, "prepare_threshold", None) is not None
    if prepares and _pools_by_transaction(subject):
        yield Problem(
            "the driver prepares statements, and a pooler may execute them on another connection",
            f"create_engine(url, {cure})",
        )


@check("postgresql-session-settings", "warning")
def session_settings(subject: Subject) -> Iterator[Problem]:
    """Behind a pooler in transaction pooling, this program (by a listener for "connect") or another
    one made a setting by SET. It stays on the server connection for the next user. The check sees
    only its own connection.
    """
    if not _pools_by_transaction(subject):
        return
    names = [str(name) for (name,) in subject.rows(_SET)]
    if names:
        yield Problem(
            "a pooler passes this server connection from client to client, and one of them changed "
            f"settings on it: {', '.join(sorted(names))}",
            "ALTER ROLE CURRENT_USER SET ..., or SET LOCAL in each transaction; then RECONNECT at "
            "PgBouncer's console",
        )
