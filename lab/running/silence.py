"""While a test run prints no result, prints every ten seconds what it waits for."""

from __future__ import annotations

import threading
import time

import pytest

from lab.running.progress import INTERVAL, say


class NoSilence:
    """A plugin for the process at the terminal, with workers; without workers, it ends at the first test.

    Its thread never runs during this process's tests, which expect no other thread.
    """

    def __init__(self, *, alone: bool, interval: float = INTERVAL) -> None:
        """Start to watch.

        :param alone: this process runs the tests itself.
        """
        self._alone = alone
        self._interval = interval
        self._results = 0
        self._running: dict[str, None] = {}  # tests, in the order of starting
        self._spoken = self._began = time.monotonic()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def pytest_runtestloop(self) -> None:
        """Stop if this process runs the tests itself."""
        if self._alone:
            self.stop()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the running test."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that it has ended."""
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that pytest prints a result."""
        if report.when == "call" or report.outcome != "passed":
            self._results += 1
            self._spoken = time.monotonic()

    def pytest_unconfigure(self) -> None:
        """Stop watching."""
        self.stop()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(max(0.0, self._spoken + self._interval - time.monotonic())):
            if time.monotonic() - self._spoken >= self._interval:
                say(f"  {time.monotonic() - self._began:3.0f} s: {self._state()}")
                self._spoken = time.monotonic()

    def _state(self) -> str:
        if not self._results:
            return "the tests are collected (about a minute), then their servers are started"
        running = self._running.copy()  # the thread of the tests changes it
        return f"{self._results} tests are over; waiting for {next(iter(running), 'the next test')}"
