"""The server's ids of the connections that an engine has, without asking the server."""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection


class Backends:
    """Those of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._lock = threading.Lock()
        self._ids: dict[int, int] = {}
        event.listen(engine, "connect", self._connected)
        for end in ("close", "detach"):
            event.listen(engine, end, self._closed)

    def ids(self) -> list[int]:
        """Return them, those that are dead and not yet known to be so among them."""
        with self._lock:
            return sorted(self._ids.values())

    def forget(self) -> None:
        """The server has come back, and gives the same ids to others."""
        with self._lock:
            self._ids.clear()

    def _connected(self, dbapi_connection: DBAPIConnection, _: object) -> None:
        with self._lock:
            self._ids[id(dbapi_connection)] = _server_id(dbapi_connection)

    def _closed(self, dbapi_connection: DBAPIConnection, *_: object) -> None:
        with self._lock:
            self._ids.pop(id(dbapi_connection), None)


def _server_id(dbapi_connection: Any) -> int:
    info = getattr(dbapi_connection, "info", None)
    return int(info.backend_pid if info is not None else dbapi_connection.thread_id())
