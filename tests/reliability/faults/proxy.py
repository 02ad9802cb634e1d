"""A TCP proxy between the clients and the server, which can damage connections.

One asyncio loop in a thread serves all of them; other threads call the methods.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy as sa

T = TypeVar("T")

#: Driver parameters that keep the packets readable.
_PLAIN = {
    "postgresql": {"sslmode": "disable", "gssencmode": "disable"},
    "mysql": {"ssl_disabled": "true"},
}


class CommitCut:
    """Ends only the connection that carries the next COMMIT.

    :param reaches_server: pass on the COMMIT but not its answer; otherwise do not pass it on.
    :param tagged: the answer contains COMMIT, as PostgreSQL's does, where other answers may come first.
    :ivar happened: the COMMIT came, and the connection ended.
    """

    _COMMIT = re.compile(
        rb"(?<![A-Za-z])COMMIT(?![A-Za-z])", re.IGNORECASE
    )  # pg8000 sends "commit"

    def __init__(self, *, reaches_server: bool, tagged: bool) -> None:
        self._reaches_server, self._tagged = reaches_server, tagged
        self.happened = False
        self._link: Link | None = None

    def last(self, link: Link, direction: str, data: bytes) -> bytes | None:
        """Return the last data to pass on in this direction; None while the connection continues."""
        if self.happened or self._link not in (None, link):
            return None
        found = self._COMMIT.search(data)
        if direction == "there":
            if self._link is not None or found is None:
                return None
            self._link = link
            if self._reaches_server:
                return None
        elif self._link is None or (self._tagged and found is None):
            return None
        self.happened = True
        return data[: 0 if found is None else found.start()]


class StatementReset:
    """Resets the connection that carries a statement with this text, without passing it on.

    :ivar happened: the statement came.
    """

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self.happened = False

    def last(self, link: Link, direction: str, data: bytes) -> bytes | None:
        """Return the last data to pass on in this direction; None while the connection continues."""
        if self.happened or direction != "there" or self._text not in data:
            return None
        self.happened = True
        link.reset()
        return b""


class AnswerGarbled(StatementReset):
    """Replaces the answer to a statement with this text by bytes that no driver can read, and ends the connection."""

    _link: Link | None = None

    def last(self, link: Link, direction: str, data: bytes) -> bytes | None:
        """Return the last data to pass on in this direction; None while the connection continues."""
        if direction == "there" and self._link is None and self._text in data:
            self._link = link
        if self.happened or direction == "there" or self._link is not link:
            return None
        self.happened = True
        return data[:20] + b"\xff" * (len(data) - 20)


class StatementHeld(StatementReset):
    """Calls a function in place of a statement with this text, which gets no answer."""

    def __init__(self, text: str, then: Callable[[], object]) -> None:
        super().__init__(text)
        self._then = then

    def last(self, link: Link, direction: str, data: bytes) -> bytes | None:
        """Return the last data to pass on in this direction; None while the connection continues."""
        if self.happened or direction != "there" or self._text not in data:
            return None
        self.happened = True
        link.flows.clear()
        link.reset(link.server)  # which releases the locks
        self._then()
        return b""


class Link:
    """One connection: the client's end, and the server's.

    :ivar flows: pass on the data that arrives.
    :ivar cut: the direction in which to pass on half of the next data, and no more.
    """

    def __init__(
        self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, proxy: Proxy
    ) -> None:
        self.client = client
        self.server = server
        self._proxy = proxy
        self.flows = asyncio.Event()
        self.flows.set()
        self.cut: str | None = None
        self.was_cut = False

    async def carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: str
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self.flows.wait()
                last = self._last(direction, data)
                if last is not None:
                    target.write(last)
                    break
                target.write(data)
                await target.drain()
        await self.flows.wait()  # half open: the server's end stays
        self.client.close()  # after the data on its way
        self.server.close()

    def _last(self, direction: str, data: bytes) -> bytes | None:
        """Return the last data to pass on in this direction; None while the connection continues."""
        if self.cut == direction:
            self.was_cut = True
            return data[: len(data) // 2]
        cut = self._proxy.commit_cut
        return None if cut is None else cut.last(self, direction, data)

    def release(self) -> None:
        """Reset the rest of a half-open connection."""
        self.reset()
        self.flows.set()

    def reset(self, *ends: asyncio.StreamWriter) -> None:
        """Close these ends with RST, which discards the data on its way."""
        for end in ends or (self.client, self.server):
            found: socket.socket = end.get_extra_info("socket")
            with suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()


class Proxy:
    """Leads to one server.

    :ivar commit_cut: ends the connection of the next COMMIT, or of another statement.
    """

    def __init__(self, url: str) -> None:
        self.commit_cut: CommitCut | StatementReset | None = None
        self._server = sa.make_url(url)
        self._links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._run(self._listen())
        self.port = int(self._listener.sockets[0].getsockname()[1])

    @property
    def url(self) -> sa.URL:
        """The server's URL through the proxy, without encryption, so that a packet can be cut."""
        url = self._server.set(host="127.0.0.1", port=self.port)
        return url.update_query_dict(_PLAIN[url.get_backend_name()])

    def harm(self, act: Callable[[Link], object], chance: random.Random) -> Link | None:
        """Apply this to a random connection; return None if there is none."""

        async def one() -> Link | None:
            if not self._links:
                return None
            link = chance.choice(self._links)
            act(link)
            return link

        return self._run(one())

    def cut_next_commit(self, *, reaches_server: bool) -> CommitCut:
        """End the connection that carries the next COMMIT: before the COMMIT, or before its answer."""
        tagged = self._server.get_backend_name() == "postgresql"
        cut = self.commit_cut = CommitCut(reaches_server=reaches_server, tagged=tagged)
        return cut

    def run_soon(self, act: Callable[[], object]) -> None:
        """Run this in the thread of the connections."""
        self._loop.call_soon_threadsafe(act)

    def close(self) -> None:
        """Reset all connections, and accept no new connection."""

        async def end() -> None:
            self._listener.close()
            for link in self._links:
                link.reset()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # aborted connections are closed now

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connect, "127.0.0.1", 0)

    async def _connect(
        self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        host, port = self._server.host, self._server.port
        try:
            from_server, server = await asyncio.open_connection(host, port)
        except BaseException as error:
            client.transport.abort()
            if isinstance(error, OSError):  # the server is away
                return
            raise
        link = Link(client, server, self)
        self._links.append(link)
        try:
            await asyncio.gather(
                link.carry(from_client, server, "there"), link.carry(from_server, client, "back")
            )
        finally:
            self._links.remove(link)
            client.close()
            server.close()

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)


@contextmanager
def proxy_to(url: str) -> Iterator[Proxy]:
    """Run in front of this server during the block."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
