"""The thread that uses each connection of the server, as SQLAlchemy's connection pool reports it.

The id that the server gives to a connection is known when the connection is made, before any
transaction, so a test knows who is about to wait although the lock is the first statement.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

_ASK_ID: Mapping[str, str] = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
    "mssql": "SELECT @@SPID",
}


_numbers = itertools.count(1)


class ConnectionLog:
    """The connections that threads have checked out of the engines which this log watches."""

    def __init__(self, database_name: str, *, pooled: bool = False) -> None:
        """Watch nothing yet; ``database_name`` decides how a connection is asked for its id.

        :param pooled: the server's id changes; a connection gets a name, which the pooler keeps.
        """
        self._pooled = pooled
        self._ask_id = _ASK_ID.get(database_name)
        self._lock = threading.Lock()
        self._users: dict[int, tuple[int, int]] = {}  # id of the DBAPI object: (thread, server id)
        self._statements: dict[int, str] = {}

    def watch(self, engine: Engine) -> None:
        """Note from now on who uses the connections of this engine."""
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "checkout", self._checked_out)
        for end in ("checkin", "close", "detach", "invalidate"):
            event.listen(engine, end, self._let_go)

    def ids_of(self, thread: int) -> frozenset[int]:
        """Return the server's ids of the connections which this thread has checked out."""
        with self._lock:
            return frozenset(
                server_id for user, server_id in self._users.values() if user == thread
            )

    def statement_of(self, thread: int) -> str | None:
        """Return what this thread last began to run on SQLite since ``forget_statement``."""
        return self._statements.get(thread)

    def forget_statement(self, thread: int) -> None:
        """Begin a new step of this thread: it has not sent anything in it."""
        self._statements.pop(thread, None)

    def _connected(self, dbapi_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        record.info["server_id"] = self._id_from_server(dbapi_connection)
        if isinstance(dbapi_connection, sqlite3.Connection):
            # Called as a statement begins, before SQLite tries for the file's lock.
            dbapi_connection.set_trace_callback(self._begun)

    def _id_from_server(self, dbapi_connection: DBAPIConnection) -> int:
        if self._ask_id is None:
            return id(dbapi_connection)
        if not self._pooled and (known := _known_to_driver(dbapi_connection)):
            return known
        cursor = dbapi_connection.cursor()
        if self._pooled:
            number = next(_numbers)
            cursor.execute(f"SET application_name = '{number}'")
            dbapi_connection.commit()
            return number
        cursor.execute(self._ask_id)
        row = cursor.fetchone()
        cursor.close()
        dbapi_connection.rollback()  # the first transaction is the test's
        return 0 if row is None else int(row[0])

    def _begun(self, statement: str) -> None:
        self._statements[threading.get_ident()] = statement

    def _checked_out(
        self,
        dbapi_connection: DBAPIConnection,
        record: ConnectionPoolEntry,
        _proxy: PoolProxiedConnection,
    ) -> None:
        with self._lock:
            self._users[id(dbapi_connection)] = (threading.get_ident(), record.info["server_id"])

    def _let_go(self, dbapi_connection: DBAPIConnection | None, *_: object) -> None:
        with self._lock:
            self._users.pop(id(dbapi_connection), None)


def _known_to_driver(dbapi_connection: Any) -> int | None:
    """Return the id that the server has sent at the start, which psycopg and PyMySQL keep.

    To ask for it takes three round trips, at each of the thousands of connections of a test run.
    """
    if info := getattr(dbapi_connection, "info", None):
        return getattr(info, "backend_pid", None)
    return getattr(dbapi_connection, "server_thread_id", (None,))[0]
