"""Counts how often a client has to wait for its PostgreSQL server before it can go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby

import sqlalchemy as sa


class Wire:
    """Stands between client and server, and notes in which direction something goes."""

    def __init__(self, host: str, port: int) -> None:
        """Listen on a port of its own; connect to that of the server."""
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._directions: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no new connections."""
        self._listener.close()

    @property
    def sent(self) -> int:
        """The number of times that a client sent something."""
        with self._lock:
            return self._directions.count("there")

    @contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Append to the list, at the end of the block, the round trips made in it."""
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
    """Lead through the wire, which reads what is not encrypted."""
    through = sa.make_url(url).set(host="127.0.0.1", port=wire.port)
    return through.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})


def wire_to(url: str) -> Wire:
    """Stand in front of this server."""
    parsed = sa.make_url(url)
    return Wire(parsed.host or "127.0.0.1", parsed.port or 5432)
