"""``--doclock-audit``: the whole run under audit(), that of pytest-xdist's workers included."""

from __future__ import annotations

import json
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from sa_doclock.testing import Audit

OPTION: Final = "--doclock-audit"
_OUTPUT: Final = "sa_doclock_audit"
_SUFFIXES: Final = (".json", ".sarif")


def add_options(group: pytest.OptionGroup) -> None:
    """Add the options."""
    group.addoption(
        OPTION,
        nargs="?",
        const="",
        metavar="FILE",
        help="find where the program lacks a lock; with =FILE.json or =FILE.sarif, write it there too",
    )
    group.addoption(
        f"{OPTION}-strict",
        action="store_true",
        help="the run fails if the audit has found an error",
    )


def separate_from_tests(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Keep the option from taking the test that follows it for its file."""
    if OPTION in args:
        args[:] = [f"{OPTION}=" if one == OPTION else one for one in args]
        config.known_args_namespace = parser.parse_known_args(args, namespace=copy(config.option))


class RunAudit:
    """Watches from the configuration on, and reports at the end."""

    def __init__(self, config: pytest.Config, file: str) -> None:
        """Begin to watch.

        :param file: the end of its name tells its format; empty for none.
        :raises pytest.UsageError: it tells none.
        """
        if file and Path(file).suffix not in _SUFFIXES:
            raise pytest.UsageError(f"{OPTION}={file}: the name ends with .json or .sarif")
        from sa_doclock.testing import Audit  # noqa: PLC0415  # SQLAlchemy, only where it is used

        self._config, self._file = config, file
        self._audit: Audit = Audit(tests_in=str(config.rootpath))
        self._watching = ExitStack()
        self._watching.enter_context(self._audit.watching())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Give a worker's findings to its controller; fail, and write the file, in the controller."""
        self._watching.close()
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = json.dumps(self._audit.export())  # xdist sends plain types alone
            return
        errors = any(one.severity == "error" for one in self._audit.findings)
        if errors and self._config.getoption("doclock_audit_strict"):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        if self._file:
            is_json = self._file.endswith(".json")
            text = self._audit.to_json() if is_json else self._audit.to_sarif()
            Path(self._config.invocation_params.dir, self._file).write_text(text, encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker has found; nothing comes of one that has crashed."""
        exported = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if exported is not None:
            self._audit.merge(json.loads(exported))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.ensure_newline()
        terminalreporter.section("audit (sa_doclock)")
        for line in self._audit.report().splitlines():
            terminalreporter.write_line(line)
        if self._file:
            terminalreporter.write_line(f"written to {self._file}")

    def pytest_unconfigure(self) -> None:
        """Watch no more, where the run has ended before its tests."""
        self._watching.close()
