"""Every way to lock order 1, and a proxy that counts how often a client waits for its server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from itertools import groupby
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Lease, Order

# --------------------------------------------------------------------------------------------------
# Every way to ask for order 1, and a check that it gives up in time.

ForUpdate = LockOptions.ForUpdate
Way = Callable[..., Any]
"""Called with a session, and lock and lock_timeout by name."""

SHORT = 0.05
"""A lock_timeout that is over soon, in seconds."""


def by_block(session: LockingSession, lock: LockOptions = ForUpdate, **how: Any) -> None:
    with session.locked(Order, 1, lock, **how):
        pass


def by_set(session: LockingSession, lock: LockOptions = ForUpdate, **how: Any) -> Any:
    return session.scalars(session.entity_set(Order, lock, **how).order_by(Order.id)).all()


def by_set_of_two_tables(session: LockingSession, lock: LockOptions = ForUpdate, **how: Any) -> Any:
    return session.scalars(session.entity_set(Lease, lock, **how)).all()


WAYS: Mapping[str, Way] = {
    "get_entity": lambda session, lock=ForUpdate, **how: session.get_entity(Order, 1, lock, **how),
    "get_one_entity": lambda session, lock=ForUpdate, **how: session.get_one_entity(
        Order, 1, lock, **how
    ),
    "get_entities": lambda session, lock=ForUpdate, **how: session.get_entities(
        Order, [2, 1], lock, **how
    ),
    "get_document": lambda session, lock=ForUpdate, **how: session.get_document(
        Order, 1, lock, **how
    ),
    "get_documents": lambda session, lock=ForUpdate, **how: session.get_documents(
        Order, [1], lock, **how
    ),
    "locked": by_block,
    "entity_set": by_set,
    "of two tables": lambda session, lock=ForUpdate, **how: session.get_entity(
        Lease, 1, lock, **how
    ),
    "some of two tables": lambda session, lock=ForUpdate, **how: session.get_entities(
        Lease, [1], lock, **how
    ),
    "set of two tables": by_set_of_two_tables,
}


def hold(session: LockingSession) -> None:
    """Hold everything that the ways above request."""
    session.get_one_entity(Order, 1, ForUpdate)
    session.get_one_entity(Lease, 1, ForUpdate)


def given_up(session: LockingSession, way: Way, **how: Any) -> LockNotAvailable:
    """Request a lock that another holds, in a new transaction or in the caller's."""
    begun = session.in_transaction()
    with pytest.raises(LockNotAvailable) as caught:
        way(session, **how)
    assert session.in_transaction() is begun
    assert caught.value.waited > 0
    return caught.value


def in_savepoint(session: LockingSession) -> Any:
    """Keep earlier work if an error would end the transaction."""
    return session.begin_nested() if session.in_transaction() else nullcontext()


# --------------------------------------------------------------------------------------------------
# Counts how often a client waits for its PostgreSQL server before it can continue.


class Wire:
    """Forwards between client and server, and records the direction of each message."""

    def __init__(self, host: str, port: int) -> None:
        """Listen on its own port; connect to the server's."""
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._directions: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no new connections."""
        self._listener.close()

    @property
    def sent(self) -> int:
        """The number of times that a client sent data."""
        with self._lock:
            return self._directions.count("there")

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Append the number of round trips to the list, at the end of the block."""
        with self._lock:
            self._directions.clear()
        trips: list[int] = []
        yield trips
        with self._lock:
            turns = [direction for direction, _ in groupby(self._directions)]
        trips.append(turns.count("back"))

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            there = threading.Thread(
                target=self._pass_on, args=(client, server, "there"), daemon=True
            )
            there.start()
            self._pass_on(server, client, "back")
            there.join()

    def _pass_on(self, one: socket.socket, other: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                with self._lock:
                    self._directions.append(direction)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def over(wire: Wire, url: str) -> sa.URL:
    """Connect through the proxy, which reads unencrypted data."""
    through = sa.make_url(url).set(host="127.0.0.1", port=wire.port)
    return through.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})


def wire_to(url: str) -> Wire:
    """Run a proxy in front of this server."""
    parsed = sa.make_url(url)
    return Wire(parsed.host or "127.0.0.1", parsed.port or 5432)
