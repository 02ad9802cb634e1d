"""The kinds of faults: the network, a crowd, interruptions, the administrator; and all at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from tests.reliability.faults.proxy import Link, Proxy

# --------------------------------------------------------------------------------------------------
# The interface of every kind of fault.


class Chaos(Protocol):
    """One kind of fault.

    :ivar name: in the past tense, for the table.
    """

    name: str

    def inject(self, chance: random.Random) -> int:
        """Inject it once; return how often it happened."""

    def heal(self) -> int:
        """Stop it; return how often it happened since the last count."""


# --------------------------------------------------------------------------------------------------
# Network faults.

#: Seconds: short enough for a run, and longer than a statement.
STALL = 0.2


class Reset:
    name = "connections reset (RST)"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def inject(self, chance: random.Random) -> int:
        return int(self._proxy.harm(Link.reset, chance) is not None)

    def heal(self) -> int:
        return 0


# --------------------------------------------------------------------------------------------------
# Another user takes all connections of the pool, for longer than a client waits for one.

#: Seconds that a client waits for a connection, less than the crowd stays.
POOL_TIMEOUT = 0.05
STAY = 0.15

#: Seconds after which the crowd takes the connections that are available.
PATIENCE = 5.0


# --------------------------------------------------------------------------------------------------
# Unexpected exceptions such as Ctrl-C, at a random place.

PLACES = (
    "before_cursor_execute",
    "after_cursor_execute",
    "commit",
    "rollback",
    "in the block",
)


# --------------------------------------------------------------------------------------------------
# The server's ids of an engine's connections, found without a query.


class Backends:
    """The ids of one engine's connections."""

    def __init__(self, engine: Engine) -> None:
        self._lock = threading.Lock()
        self._ids: dict[int, int] = {}
        event.listen(engine, "connect", self._connected)
        for end in ("close", "detach"):
            event.listen(engine, end, self._closed)

    def ids(self) -> list[int]:
        """Return the ids, including connections that died unnoticed."""
        with self._lock:
            return sorted(self._ids.values())

    def forget(self) -> None:
        """Forget them: the server restarted, and gives the same ids to other connections."""
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


# --------------------------------------------------------------------------------------------------
# The administrator ends connections and statements.

_END: Mapping[str, str] = {
    "postgresql": "SELECT pg_terminate_backend({})",
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
}
_CANCEL: Mapping[str, str] = {
    "postgresql": "SELECT pg_cancel_backend({})",
    "mysql": "KILL QUERY {}",
    "mariadb": "KILL QUERY {}",
}
NO_SUCH_THREAD = 1094  # ER_NO_SUCH_THREAD: it ended by itself


class _Kills:
    """Runs a statement of the administrator against a random connection of the clients."""

    name: str

    def __init__(self, engine: Engine, direct: Engine, statement: str) -> None:
        self._backends = Backends(engine)
        self._administrator = direct.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._statement = statement

    def inject(self, chance: random.Random) -> int:
        ids = self._backends.ids()
        if not ids:
            return 0
        try:
            done = self._administrator.exec_driver_sql(self._statement.format(chance.choice(ids)))
            return int(not done.returns_rows or bool(done.scalar()))
        except sa.exc.DBAPIError as error:
            if error.orig is None or error.orig.args[0] != NO_SUCH_THREAD:
                raise
            return 0

    def restarted(self) -> None:
        """Forget the old connections: the server was killed and restarted."""
        self._backends.forget()
        self._administrator.invalidate()
        self._administrator.rollback()

    def heal(self) -> int:
        self._administrator.close()
        return 0


# --------------------------------------------------------------------------------------------------
# All kinds of faults at once.


class Together:
    """Injects a random kind each time."""

    name = "all of these at once, and SIGKILL to the server"

    def __init__(self, kinds: Sequence[Chaos]) -> None:
        self._kinds = kinds

    def inject(self, chance: random.Random) -> int:
        return chance.choice(self._kinds).inject(chance)

    def heal(self) -> int:
        return sum(kind.heal() for kind in self._kinds)
