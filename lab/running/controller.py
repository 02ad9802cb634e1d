"""The process that starts a test run: it starts the servers and hands out the tests.

With pytest-xdist, workers run the tests.  A worker collects the tests, calls :func:`register_tests`,
gets the servers it needs, and says which tests run in one process.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from typing import Any

from lab.running.shares import SECOND
from lab.servers import (
    NAMES,
    Missing,
    Server,
    UnavailableError,
    find_servers,
    start_private,
)
from lab.servers.model import no_crash, no_stop
from lab.servers.mssql import disable_odbc_pooling

Found = dict[str, Server | Missing]


class Controller:
    """Starts each server at the first request for it.

    :ivar found: the requested servers, and the reasons why others are missing.
    :ivar groups: the group name of each test of the workers; see tests/README.md.
    """

    def __init__(self) -> None:
        """Start no server yet."""
        self.found: Found = {}
        self.groups: dict[str, str] = {}
        self._address: dict[str, Any] | None = None
        self._tried: set[str] = set()

    def find(self, names: Iterable[str]) -> Found:
        """Return these servers; start the new ones, all at the same time.

        Without a first server from this run, a database gets no second one.
        """
        wanted = set(names)
        self.found |= find_servers(
            name for name in NAMES if name in wanted and name not in self.found
        )
        for name, second in SECOND.items():
            if second in wanted and second not in self._tried and self._is_of_this_run(name):
                self._tried.add(second)  # once: all workers get the same answer
                with suppress(UnavailableError):
                    self.found[second] = start_private(name)
        return {name: server for name, server in self.found.items() if name in wanted}

    def _is_of_this_run(self, name: str) -> bool:
        server = self.found.get(name)
        return isinstance(server, Server) and server.crash is not no_crash

    def address(self) -> dict[str, Any]:
        """Start to listen, and return the address where workers register, in types that pytest-xdist can send."""
        if self._address is None:
            key = secrets.token_bytes(16)
            # Each worker waits in the backlog until the servers of the earlier workers have started.
            listener = Listener(("127.0.0.1", 0), backlog=128, authkey=key)
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()
            host, port = listener.address
            self._address = {"host": host, "port": port, "key": key}
        return self._address

    def stop(self) -> None:
        """Stop the servers, all at the same time."""
        with ThreadPoolExecutor() as pool:
            for server in self.found.values():
                if isinstance(server, Server):
                    pool.submit(server.stop)

    def _serve(self, listener: Listener) -> None:
        while True:  # one worker at a time: the second finds the servers started
            with listener.accept() as connection:
                found = self.find(connection.recv())
                connection.send({name: _without_process(one) for name, one in found.items()})
                self.groups |= connection.recv()
                connection.send(True)  # the tests may be handed out from now on


def register_tests(
    address: dict[str, Any], names: Iterable[str], groups_of: Callable[[Found], dict[str, str]]
) -> Found:
    """Return these servers, which the controller stops, and report the groups of all tests to it.

    :param groups_of: returns the name of the group for each test.
    """
    with Client((address["host"], address["port"]), authkey=address["key"]) as connection:
        connection.send(list(names))
        found: Found = connection.recv()
        connection.send(groups_of(found))
        connection.recv()
    if isinstance(found.get("mssql"), Server):
        disable_odbc_pooling()
    return found


def _without_process(server: Server | Missing) -> Server | Missing:
    """Return the server without the functions that only its own process can call."""
    if isinstance(server, Missing):
        return server
    return replace(server, stop=no_stop, crash=no_crash)
