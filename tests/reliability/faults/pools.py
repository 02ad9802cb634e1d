"""The pool afterwards: all connections back, and none with a setting of ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool

#: What must be the same on a connection of the pool and on a new one.
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
    """Return what is wrong with the pool of ``engine``; afterwards it has no dead connection.

    :param fresh: an engine whose next connection is a new one.
    """
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    if pool.checkedout():
        return [f"{pool.checkedout()} connections have not come back"]
    with fresh.connect() as connection:
        wanted = _settings(connection)
    _, wrong = _looked_at(engine, pool.checkedin(), wanted)  # at once: one that is dead ends all
    # The second time a connection that was found dead has been replaced.
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
