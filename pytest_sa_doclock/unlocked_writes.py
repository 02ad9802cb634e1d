"""A table of the writes without a lock, in sessions with ``guard="warn"``."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sa_doclock import UnlockedWrite
    from sa_doclock.options import GuardMode

_OUTPUT = "sa_doclock_unlocked_writes"


class UnlockedWrites:
    """Counts the unlocked writes of a run, including those of pytest-xdist's workers.

    It starts to listen at the first test after sa_doclock is imported.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._counts: Counter[tuple[str, str]] = Counter()  # by line and class
        self._listens = self._sets_guard = False

    def set_guard(self, mode: GuardMode) -> None:
        """Set this mode for every session of the run."""
        from sa_doclock.features import options_of_all  # noqa: PLC0415

        options_of_all.update(guard=mode, guard_tracing=True)
        self._sets_guard = True
        if mode == "warn":
            # The table reports the write; raised as an error, the warning would stop it.
            ignored = "ignore::sa_doclock.UnlockedWriteWarning"
            self._config.addinivalue_line("filterwarnings", ignored)
            self._listen()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Listen if the test modules have imported sa_doclock."""
        if not self._listens and "sa_doclock.session" in sys.modules:
            self._listen()

    pytest_runtest_call = pytest_runtest_setup  # a fixture may have imported sa_doclock

    def pytest_sessionfinish(self) -> None:
        """Pass a worker's counts to the controller."""
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = [(*key, times) for key, times in self._counts.items()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's counts; a crashed worker has none."""
        for line, name, times in getattr(node, "workeroutput", {}).get(_OUTPUT, ()):
            self._counts[line, name] += times

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, if there were unlocked writes."""
        if not self._counts:
            return
        terminalreporter.ensure_newline()
        terminalreporter.section("unlocked writes (sa_doclock)")
        rows = sorted(self._counts.items(), key=lambda row: (-row[1], row[0]))
        table = [("line", "class", "times")]
        table += [(line, name, str(times)) for (line, name), times in rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line, name, times in table:
            terminalreporter.write_line(
                f"{line:<{widths[0]}}  {name:<{widths[1]}}  {times:>{widths[2]}}"
            )

    def pytest_unconfigure(self) -> None:
        """Stop listening, and restore the sessions' own guard."""
        if self._listens:
            from sqlalchemy import event  # noqa: PLC0415

            from sa_doclock import LockingSession  # noqa: PLC0415

            event.remove(LockingSession, "unlocked_write", self._count)
            self._listens = False
        if self._sets_guard:
            from sa_doclock.features import options_of_all  # noqa: PLC0415

            options_of_all.clear()

    def _listen(self) -> None:
        from sqlalchemy import event  # noqa: PLC0415

        from sa_doclock import LockingSession  # noqa: PLC0415

        event.listen(LockingSession, "unlocked_write", self._count)
        self._listens = True

    def _count(self, _session: object, error: UnlockedWrite, line: str | None) -> None:
        name = "" if error.entity is None else error.entity.__name__
        self._counts[self._shown(line or "unknown"), name] += 1

    def _shown(self, line: str) -> str:
        """Return the line with its file relative to the folder in which pytest was started."""
        return line.removeprefix(f"{self._config.invocation_params.dir}{os.sep}")
