"""The server's word about a connection, and an account that pg8000 can use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import sqlalchemy as sa

from tests.support.databases import Database

_ER_CANT_CHANGE_TX_CHARACTERISTICS = 1568
_ACTIVE = "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = {} AND state <> 'idle'"

IsInTransaction = Callable[[sa.Connection], bool]


def watch(database: Database, connection: sa.Connection) -> IsInTransaction:
    """Return a function that tells whether the server has a transaction open for this connection.

    The connection, which is in none, is left in none.
    """
    if database.name != "postgresql":
        return _refuses_set_transaction
    with closing(connection.connection.cursor()) as cursor:  # past SQLAlchemy
        cursor.execute("SELECT pg_backend_pid()")
        number = cursor.fetchall()[0][0]
    connection.connection.rollback()

    def is_active(_: sa.Connection) -> bool:
        with database.observer().connect() as observer:
            return bool(observer.exec_driver_sql(_ACTIVE.format(number)).scalar_one())

    return is_active


def _refuses_set_transaction(connection: sa.Connection) -> bool:
    """Ask MySQL or MariaDB, whose list of transactions is up to 0.1 s old."""
    driver_error: Any = connection.dialect.loaded_dbapi.Error
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ WRITE")
    except driver_error as error:
        if error.args[0] != _ER_CANT_CHANGE_TX_CHARACTERISTICS:
            raise
        return True
    return False


def account_for_pg8000(database: Database) -> str:
    """Return an account with the password of the URL; pg8000 accepts 4,096 rounds of SCRAM or more."""
    url = sa.make_url(database.url)
    name = f"{url.username}_pg8000"
    with database.observer().connect() as connection:
        known = connection.execute(
            sa.text("SELECT 1 FROM pg_roles WHERE rolname = :name"), {"name": name}
        )
        if known.first() is None:
            connection.execute(
                sa.text(
                    "SELECT set_config(name, '4096', false) FROM pg_settings "
                    "WHERE name = 'scram_iterations'"
                )
            )
            connection.exec_driver_sql(
                f"CREATE ROLE {name} LOGIN IN ROLE {url.username} PASSWORD '{url.password}'"
            )
            connection.exec_driver_sql(f"ALTER ROLE {name} SET ROLE {url.username}")
    return name
