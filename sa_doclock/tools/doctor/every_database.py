"""Checks of every database: the engine, its pool, and proxies between it and the server."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from ...dialects.base import AUTOCOMMIT, levels_for
from ...errors import LockNotSupported
from ...options import LockOptions
from ...pool import rolls_back_by_listener
from ...sqlalchemy_internals import ends_on_return, largest_size
from ..monitoring import missing_privilege
from .check import Problem, Subject, check

_OWN_ID: Final[Mapping[str, str]] = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
}
"""The server's own id of the connection, if the driver reports one too."""

_MOST_CONNECTIONS: Final[Mapping[str, str]] = {
    "postgresql": (
        "SELECT SUM(CASE name WHEN 'max_connections' THEN 1 ELSE -1 END "
        "* CAST(setting AS integer)) FROM pg_settings "
        "WHERE name IN ('max_connections', 'superuser_reserved_connections', "
        "'reserved_connections')"
    ),
    "mysql": "SELECT @@max_connections",
    "mariadb": "SELECT @@max_connections",
    "mssql": "SELECT @@MAX_CONNECTIONS",
}


@check("autocommit", "error")
def autocommit(subject: Subject) -> Iterator[Problem]:
    """The engine is in AUTOCOMMIT, where a lock ends with its statement: every lock of a session on
    this engine raises LockNotSupported.
    """
    with subject.engine.connect() as connection:
        try:
            subject.strategy.check_autocommit(connection)
        except LockNotSupported:
            yield Problem(
                AUTOCOMMIT.partition(". ")[0],
                "make the engine without isolation_level='AUTOCOMMIT' and without autocommit=True",
            )


@check("isolation-level", "info")
def isolation_level(subject: Subject) -> Iterator[Problem]:
    """The engine's isolation level does not protect a document: rows read after a lock may be older
    than the lock. A lock at the start of a transaction sets the right level; a lock after a read
    raises WrongIsolation.
    """
    levels = levels_for(subject.strategy.isolation, LockOptions.ForUpdate)
    with subject.engine.connect() as connection:
        level = connection.get_isolation_level() if levels else None
    if level is not None and level not in levels:
        yield Problem(
            f"transactions begin at {level}, and a lock that is not the first statement of its "
            "transaction is WrongIsolation",
            f'create_engine(url, isolation_level="{levels[0]}"), or take locks first',
        )


@check("pool-reset", "warning")
def pool_reset(subject: Subject) -> Iterator[Problem]:
    """The pool sends no ROLLBACK when a connection returns (`pool_reset_on_return=None`). A
    connection with an open transaction keeps its locks in the pool.
    """
    pool = subject.engine.pool
    if not ends_on_return(pool) and not rolls_back_by_listener(pool):
        yield Problem(
            "the pool sends no ROLLBACK when a connection comes back: one with an open "
            "transaction keeps its locks",
            "make the engine without pool_reset_on_return=None, or with "
            "**sa_doclock.skip_redundant_rollback()",
        )


@check("pool-without-limit", "warning")
def pool_without_limit(subject: Subject) -> Iterator[Problem]:
    """The pool has no limit (`max_overflow=-1`, or `pool_size=0`): each waiting session has a
    connection, so one slow holder can use up all connections of the server.
    """
    pool = subject.engine.pool
    if isinstance(pool, QueuePool) and largest_size(pool) is None:
        yield Problem(
            "the pool has no limit, and every session that waits for a lock has a connection",
            "create_engine(url, pool_size=10, max_overflow=5); a DocumentGate lets sessions wait "
            "without a connection",
        )


@check("pool-too-large", "warning")
def pool_too_large(subject: Subject) -> Iterator[Problem]:
    """The pool of this one process may open more connections than the server accepts. If sessions
    queue for a lock, the server then refuses other programs.
    """
    pool, query = subject.engine.pool, _MOST_CONNECTIONS.get(subject.strategy.name)
    largest = largest_size(pool) if isinstance(pool, QueuePool) else None
    if largest is None or query is None:
        return
    limit = int(subject.ask(query))
    if largest > limit:
        yield Problem(
            f"the pool of each process may grow to {largest} connections, and the server "
            f"accepts {limit} in all",
            f"create_engine(url, pool_size=..., max_overflow=...): all processes together less "
            f"than {limit}",
        )


@check("pooler", "warning")
def pooler(subject: Subject) -> Iterator[Problem]:
    """A pooler or proxy, such as PgBouncer or ProxySQL, is between the program and the server: the
    server's connection id differs from the driver's. Row locks work if the pooler keeps a
    connection for a whole transaction. Settings of the connection and MySQL's named locks may
    affect another program.
    """
    query, monitoring = _OWN_ID.get(subject.strategy.name), subject.strategy.monitoring
    if query is None or monitoring is None:
        return
    known, own = monitoring.connection_id(subject.connection), subject.ask(query)
    if known is not None and known != own:
        yield Problem(
            f"a pooler or proxy is in between: the connection's id is {known} for the driver, and {own} "
            "for the server",
            "pool by transaction or by session, never by statement; set limits by ALTER ROLE or in "
            "the server, not by SET; connect past the pooler to use waits and named locks",
        )


@check("cluster", "warning")
def cluster(subject: Subject) -> Iterator[Problem]:
    """The server is a node of a cluster in which other nodes accept writes too. Locks are local: a
    session at another node does not wait, and one of the two fails at its COMMIT.
    """
    found = subject.strategy.cluster
    if found is not None and found.name is not None:
        yield Problem(
            f"the server is a node of {found.name}: locks are local to this node",
            "send all programs that lock to one node, and repeat transactions by run_transaction()",
        )


@check("waits-privilege", "warning")
def waits_privilege(subject: Subject) -> Iterator[Problem]:
    """The account cannot see lock waits: `sa-doclock waits` and `lock_waits()` fail, and
    `diagnose=True` names no holder.
    """
    monitoring = subject.strategy.monitoring
    if monitoring is None:
        return
    try:
        deque(monitoring.waits(subject.connection), maxlen=0)
    except DBAPIError as error:
        needed = missing_privilege(subject.strategy, error)
        if needed is None:
            raise
        grant = needed.partition("GRANT ")[2].partition(",")[0]
        yield Problem(
            f"this account cannot see who waits for whom: {needed}",
            f"GRANT {grant} TO {subject.account};" if grant else needed,
        )
