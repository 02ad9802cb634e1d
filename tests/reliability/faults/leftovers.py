"""Locks that are still there when every client has gone."""

from __future__ import annotations

import time
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.reliability.faults.model import FOLDERS, Folder

#: Seconds in which a server has to notice that a client is dead.
PATIENCE = 30.0

#: Locks and transactions that the server knows of, but for those of the one who asks.
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
    """Return what still holds the folders, or their named lock; empty once all is free.

    A server notices only after a while that a client is dead.

    :param engine: a direct one, with no pool: nothing of it is known to the clients.
    """
    deadline = time.monotonic() + PATIENCE
    while left := _held(engine) or _on_server(engine):
        if time.monotonic() > deadline:
            break
        time.sleep(0.15)  # MariaDB's tables are renewed after 0.1 s in which nobody has looked
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
