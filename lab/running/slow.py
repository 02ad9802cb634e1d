"""A list of the slow tests that lack the marker ``slow``."""

from __future__ import annotations

import pytest


class UnmarkedSlowTests:
    """A plugin that prints the list in the summary; no test fails for its duration."""

    def __init__(self, seconds: float) -> None:
        """List tests that take longer than this, without their fixtures."""
        self._seconds = seconds
        self._found: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test; with pytest-xdist, the controller gets the reports of all workers."""
        long = report.when == "call" and report.duration > self._seconds
        if long and "slow" not in report.keywords:
            self._found[report.nodeid] = report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the list, the longest first."""
        if self._found:
            terminalreporter.section("slow, and not marked so")
            for nodeid in sorted(self._found, key=lambda nodeid: -self._found[nodeid]):
                terminalreporter.write_line(f"{self._found[nodeid]:.1f} s  {nodeid}")
