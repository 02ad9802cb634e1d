"""The process that a test run begins with: it starts the servers and hands out the tests.

With pytest-xdist, workers run the tests.  A worker calls :func:`register_tests` when it has
collected them, and gets the servers that they need.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from typing import Any

from tests.support.servers import NAMES, Missing, Server, find_servers
from tests.support.servers.model import no_crash, no_stop
from tests.support.servers.mssql import disable_odbc_pooling

Found = dict[str, Server | Missing]


class Controller:
    """Starts each server when it is first asked for.

    :ivar found: the servers that were asked for, and the reasons why others are missing.
    :ivar groups: for each test of the workers, the name of its group; see tests/README.md.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self.found: Found = {}
        self.groups: dict[str, str] = {}
        self._address: dict[str, Any] | None = None

    def find(self, names: Iterable[str]) -> Found:
        """Return these servers; start those that are new, all at the same time."""
        wanted = set(names)
        self.found |= find_servers(
            name for name in NAMES if name in wanted and name not in self.found
        )
        return {name: self.found[name] for name in NAMES if name in wanted}

    def address(self) -> dict[str, Any]:
        """Return where workers register, in types that pytest-xdist can send; listen from now on."""
        if self._address is None:
            key = secrets.token_bytes(16)
            listener = Listener(("127.0.0.1", 0), authkey=key)
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
        while True:  # one worker after the other: the second one finds the servers started
            with listener.accept() as connection:
                groups, names = connection.recv()
                self.groups |= groups
                connection.send({n: _without_process(s) for n, s in self.find(names).items()})


def register_tests(address: dict[str, Any], groups: dict[str, str], names: Iterable[str]) -> Found:
    """Tell the controller the groups of all tests; return these servers, which it stops."""
    with Client((address["host"], address["port"]), authkey=address["key"]) as connection:
        connection.send((groups, list(names)))
        found: Found = connection.recv()
    if isinstance(found.get("mssql"), Server):
        disable_odbc_pooling()
    return found


def _without_process(server: Server | Missing) -> Server | Missing:
    """Return the server without the functions that only its own process can call."""
    if isinstance(server, Missing):
        return server
    return replace(server, stop=no_stop, crash=no_crash)
