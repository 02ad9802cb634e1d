"""The kinds of faults: of a network, of a crowd, interruptions, the administrator; and all at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import QueuePool

from tests.reliability.faults.model import Injected
from tests.reliability.faults.proxy import Link, Proxy

# --------------------------------------------------------------------------------------------------
# The interface of every kind of fault.


class Chaos(Protocol):
    """One kind of fault.

    :ivar name: in the past, for the table.
    """

    name: str

    def inject(self, chance: random.Random) -> int:
        """Inject it, once; return how often it has really happened."""

    def heal(self) -> int:
        """Let nothing of it go on; return what has happened since, and was not counted yet."""


# --------------------------------------------------------------------------------------------------
# Faults of a network.

#: Seconds: short enough for a run, and longer than a statement takes.
STALL = 0.2


class Reset:
    name = "connections reset (RST)"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def inject(self, chance: random.Random) -> int:
        return int(self._proxy.harm(Link.reset, chance) is not None)

    def heal(self) -> int:
        return 0


class HalfOpen:
    """The client's end is reset, and the server's stays: it keeps waiting, with its locks."""

    name = "connections left half open"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._open: list[Link] = []

    def inject(self, chance: random.Random) -> int:
        self.heal()

        def leave_open(link: Link) -> None:
            link.flows.clear()
            link.reset(link.client)
            self._open.append(link)

        return int(self._proxy.harm(leave_open, chance) is not None)

    def heal(self) -> int:
        """Drop the connections in the end, as a router does which counts them."""
        while self._open:
            self._proxy.run_soon(self._open.pop().release)
        return 0


class Stalled:
    """Nothing comes through for a while; after that, everything does."""

    name = "connections stalled"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._waiting = threading.Event()

    def inject(self, chance: random.Random) -> int:
        link = self._proxy.harm(lambda link: link.flows.clear(), chance)
        self._waiting.wait(STALL)
        if link is not None:
            self._proxy.run_soon(link.flows.set)
        return int(link is not None)

    def heal(self) -> int:
        return 0


class CutInMidPacket:
    """Half of the next packet comes through, and then the end."""

    name = "connections cut in mid-packet"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._armed: list[Link] = []

    def inject(self, chance: random.Random) -> int:
        direction = chance.choice(("there", "back"))
        arm: Callable[[Link], object] = lambda link: setattr(link, "cut", direction)  # noqa: E731
        link = self._proxy.harm(arm, chance)
        if link is not None:
            self._armed.append(link)
        return self._happened()

    def heal(self) -> int:
        return self._happened()

    def _happened(self) -> int:
        done = [link for link in self._armed if link.was_cut]
        self._armed = [link for link in self._armed if link not in done]
        return len(done)


# --------------------------------------------------------------------------------------------------
# Somebody else takes all connections of the pool, for longer than a client waits for one.

#: Seconds that a client waits for a connection: shorter than the crowd stays.
POOL_TIMEOUT = 0.05
STAY = 0.15

#: Seconds after which the crowd takes what there is.
PATIENCE = 5.0


class FullPool:
    name = "pool filled by others"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        assert isinstance(engine.pool, QueuePool)
        self._pool = engine.pool
        self._open = threading.Event()
        self._open.set()

    def before(self) -> None:
        """Let the crowd in first: a client calls this before each update.

        The pool has none: who has just given a connection back is the first to get it again.
        """
        self._open.wait(PATIENCE)

    def inject(self, chance: random.Random) -> int:
        self._open.clear()
        wanted, taken = self._pool.size(), list[Connection]()
        end = time.monotonic() + PATIENCE
        while len(taken) < wanted and time.monotonic() < end:
            with suppress(sa.exc.TimeoutError):
                taken.append(self._engine.connect())
        self._open.set()
        threading.Event().wait(STAY)
        for connection in taken:
            connection.close()
        return int(len(taken) == wanted)

    def heal(self) -> int:
        return 0


# --------------------------------------------------------------------------------------------------
# Exceptions like Ctrl-C, which nobody expects, at a place chosen at random.

PLACES = (
    "before_cursor_execute",
    "after_cursor_execute",
    "commit",
    "rollback",
    "in the block",
)


class Interrupts:
    name = "exceptions like Ctrl-C in the block"

    def __init__(self, engine: Engine) -> None:
        self._lock = threading.Lock()
        self._place: str | None = None
        self._done = 0
        for place in PLACES[:-1]:
            event.listen(engine, place, self._raiser(place))

    def pause(self) -> None:
        """Raise the exception, if one is due, between a client's changes and their commit."""
        self._raise_at("in the block")

    def inject(self, chance: random.Random) -> int:
        with self._lock:
            self._place = chance.choice(PLACES)
        return self._counted()

    def heal(self) -> int:
        with self._lock:
            self._place = None
        return self._counted()

    def _counted(self) -> int:
        with self._lock:
            done, self._done = self._done, 0
        return done

    def _raiser(self, place: str) -> Callable[..., None]:
        def listen(*_: object) -> None:
            self._raise_at(place)

        return listen

    def _raise_at(self, place: str) -> None:
        with self._lock:
            if self._place != place:
                return
            self._place = None
            self._done += 1
        raise Injected(place)


# --------------------------------------------------------------------------------------------------
# The server's ids of the connections that an engine has, without asking the server.


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
NO_SUCH_THREAD = 1094  # ER_NO_SUCH_THREAD: it has gone by itself


class _Kills:
    """Runs a statement of the administrator's on a connection of the clients, chosen at random."""

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
        """The server was killed, and has come back."""
        self._backends.forget()
        self._administrator.invalidate()
        self._administrator.rollback()

    def heal(self) -> int:
        self._administrator.close()
        return 0


class Terminated(_Kills):
    name = "connections terminated by the server"

    def __init__(self, engine: Engine, direct: Engine, product: str) -> None:
        super().__init__(engine, direct, _END[product])


class Cancelled(_Kills):
    name = "statements cancelled by the server"

    def __init__(self, engine: Engine, direct: Engine, product: str) -> None:
        super().__init__(engine, direct, _CANCEL[product])


# --------------------------------------------------------------------------------------------------
# All kinds at once.


class Together:
    """One of the kinds each time, chosen at random."""

    name = "all of these at once, and SIGKILL to the server"

    def __init__(self, kinds: Sequence[Chaos]) -> None:
        self._kinds = kinds

    def inject(self, chance: random.Random) -> int:
        return chance.choice(self._kinds).inject(chance)

    def heal(self) -> int:
        return sum(kind.heal() for kind in self._kinds)
