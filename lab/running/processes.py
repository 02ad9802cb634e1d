"""Processes that a test stops or kills, forked from one that has already imported the library.

Importing it takes Python half a second, and some tests start dozens of processes.  The process that
forks has neither threads nor connections.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TextIO

_CONTEXT: Any = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["sa_doclock", "psycopg", "pymysql", "tests.support.models"])


class Forked:
    """A process that runs ``main(*arguments)`` of a module, and communicates over its standard streams."""

    def __init__(self, module: str, *arguments: str) -> None:
        (read, self._write), (self._read, write) = (_CONTEXT.Pipe(duplex=False) for _ in range(2))
        self._process = _CONTEXT.Process(target=_run, args=(read, write, module, arguments))
        self._process.start()
        read.close()
        write.close()
        self.input: TextIO = os.fdopen(self._write.fileno(), "w", closefd=False)
        self.output: TextIO = os.fdopen(self._read.fileno(), closefd=False)

    def next_line(self) -> str:
        """Return its next line, without the line end; "" if it has ended."""
        return self.output.readline().strip()

    def tell(self, line: str = "go on") -> None:
        """Send it a line."""
        self.input.write(f"{line}\n")
        self.input.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL; its earlier output can still be read."""
        self._process.kill()

    def end(self) -> int:
        """Wait for its end, and return the exit status: 0, or a signal as a negative number."""
        self.output.read()  # let it print the rest
        self._process.join()
        return int(self._process.exitcode)

    def close(self) -> None:
        """Kill the process if it still runs, and close its streams."""
        self.kill()
        self._process.join()
        for stream in (self.output, self._write, self._read):
            stream.close()


@contextmanager
def forked(module: str, *arguments: str) -> Iterator[Forked]:
    """Start a process, and end it in any case."""
    process = Forked(module, *arguments)
    try:
        yield process
    finally:
        process.close()


def _run(read: Connection, write: Connection, module: str, arguments: tuple[str, ...]) -> None:
    os.dup2(read.fileno(), 0)
    os.dup2(write.fileno(), 1)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    importlib.import_module(module).main(*arguments)
    sys.stdout.flush()
