"""Starts child processes, and kills them."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import Any

from tests.support.actors import PATIENCE

# Each is forked from one process that has imported everything, and has done nothing else.
_START = multiprocessing.get_context("forkserver")
_START.set_forkserver_preload(["tests.reliability.faults.sqlite.worker"])


@dataclass
class Child:
    """A process, and the pipe on which it tells how far it is."""

    process: BaseProcess
    pipe: Pipe

    def wait_for_reports(self, times: int = 1) -> None:
        """Wait until it has reported something so many times."""
        for _ in range(times):
            assert self.pipe.poll(PATIENCE), f"{self.process} says nothing"
            self.pipe.recv_bytes()

    def kill(self) -> None:
        """Kill it at once, and wait until it is gone."""
        assert self.process.pid is not None
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int | None:
        """Wait for its end; return its exit code, that of a signal negative."""
        self.process.join(PATIENCE)
        return self.process.exitcode


@contextmanager
def started(main: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Start a process that is killed in the end, if it is alive."""
    ours, theirs = _START.Pipe()
    process = _START.Process(target=main, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    child = Child(process, ours)
    try:
        yield child
    finally:
        child.kill()
        ours.close()


def wait_a_moment(chance: random.Random) -> None:
    """Let 0 to 3 ms pass: so the process is killed anywhere in its commit, or just behind it."""
    end = time.perf_counter() + chance.random() * 0.003
    while time.perf_counter() < end:
        pass
