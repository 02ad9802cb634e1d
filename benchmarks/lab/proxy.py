"""A TCP proxy: counts round trips, adds latency, and records the traffic with its times.

It is a separate process (``python proxy.py HOST PORT``), so that its CPU time does not count as the
benchmark's; :class:`Proxy` starts it and exchanges one JSON value a line with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

THERE, BACK = "there", "back"

# The first words of statements, in the order of travel.
_STATEMENT = re.compile(
    rb"\b(FOR UPDATE|FOR SHARE|LOCK IN SHARE MODE|BEGIN|START|SELECT|UPDATE|INSERT|DELETE|COMMIT"
    rb"|ROLLBACK|(?<! )SET)\b"  # not the SET in an UPDATE
)
_LOCK = re.compile(rb"FOR UPDATE|FOR SHARE|LOCK IN SHARE MODE")
_RELEASE = re.compile(rb"\b(COMMIT|ROLLBACK)\b")


class Chunk(NamedTuple):
    """Data that arrived over the wire at once."""

    at: float  # seconds since the start of the recording
    direction: str
    statements: tuple[str, ...]
    locks: bool
    releases: bool


class Recording(NamedTuple):
    """The data that one client and its server exchanged."""

    chunks: Sequence[Chunk]

    @property
    def round_trips(self) -> int:
        """The number of times that the client waited for the server."""
        return [direction for direction, _ in self._turns()].count(BACK)

    @property
    def held(self) -> int:
        """The round trips between the grant of the lock and its release.

        :raises ValueError: the recording shows no lock, or no release.
        """
        requests = [chunks for direction, chunks in self._turns() if direction == THERE]
        locked = [n for n, chunks in enumerate(requests) if any(one.locks for one in chunks)]
        if not locked:
            raise ValueError("no lock went over the wire")
        for number, chunks in enumerate(requests):
            if number >= locked[0] and any(one.releases for one in chunks):
                return number - locked[0]
        raise ValueError("no release went over the wire")

    def _turns(self) -> list[tuple[str, list[Chunk]]]:
        grouped = groupby(self.chunks, key=lambda chunk: chunk.direction)
        return [(direction, list(chunks)) for direction, chunks in grouped]


class Proxy:
    """The proxy's process, as the benchmark controls it."""

    def __init__(self, host: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, host, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def delay(self, seconds: float) -> None:
        """Add this latency to each direction."""
        self._ask({"delay": seconds})

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Recording]]:
        """Yield a list; when the block ends, append the traffic of the block to it."""
        self._ask({"record": True})
        recordings: list[Recording] = []
        yield recordings
        chunks = self._ask({"record": False})
        recordings.append(
            Recording([Chunk(at, to, tuple(s), *rest) for at, to, s, *rest in chunks])
        )

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class _Wire:
    """The proxy itself."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._delay = 0.0
        self._chunks: list[Chunk] | None = None
        self._began = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._answer(listener.sockets[0].getsockname()[1])
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(self._obey, json.loads(line))
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=listen, daemon=True).start()
        await over.wait()
        listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _obey(self, command: dict[str, Any]) -> None:
        answer: Any = None
        if "delay" in command:
            self._delay = command["delay"]
        elif command["record"]:
            self._chunks, self._began = [], time.monotonic()
        else:
            answer, self._chunks = self._chunks, None
        self._answer(answer)

    def _answer(self, value: Any) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    async def _connect(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(*self._server)
        for reader, writer, direction in (
            (client, to_server, THERE),
            (server, to_client, BACK),
        ):
            task = asyncio.create_task(self._pass_on(reader, writer, direction))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._chunks is not None:
                    self._chunks.append(self._chunk_of(data, direction))
                if self._delay:  # do not delay later data by earlier data
                    loop.call_later(self._delay, self._write, writer, data)
                else:
                    writer.write(data)
        loop.call_later(self._delay, self._close, writer)

    def _chunk_of(self, data: bytes, direction: str) -> Chunk:
        at = time.monotonic() - self._began
        if direction == BACK:
            return Chunk(at, direction, (), locks=False, releases=False)
        statements = tuple(word.decode() for word in _STATEMENT.findall(data))
        locks, releases = bool(_LOCK.search(data)), bool(_RELEASE.search(data))
        return Chunk(at, direction, statements, locks, releases)

    @staticmethod
    def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)

    @staticmethod
    def _close(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()


def main(host: str, port: str) -> None:
    # epoll rounds timeouts up to milliseconds; select() does not.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_Wire(host, int(port)).serve())
    loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
