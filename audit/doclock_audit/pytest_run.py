"""``--doclock-audit``: audits the whole run, including pytest-xdist's workers."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from .paths import check_writable
from .watching import Audit

_OUTPUT: Final = "sa_doclock_audit"
_SUFFIXES: Final = (".json", ".sarif")


class RunAudit:
    """Watches from configuration on, and reports at the end."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin to watch.

        :raises pytest.UsageError: the file's extension names no known format, or the file cannot be
            written.
        """
        file, html = config.getoption("doclock_audit"), config.getoption("doclock_audit_html")
        if file and Path(file).suffix not in _SUFFIXES:
            raise pytest.UsageError(
                f"--doclock-audit={file}: the name must end with .json or .sarif"
            )
        self._files = {file: Path(file or "").suffix, html: ".html"}
        self._folder = config.invocation_params.dir
        if not hasattr(config, "workerinput"):  # a pytest-xdist worker writes no file
            for one in filter(None, self._files):
                check_writable(self._folder / one, pytest.UsageError)
        self._config = config
        packages = config.getoption("doclock_audit_package")
        # pytest.ini may be in the tests' folder, and pytest may run there: the outer folder is the project's.
        outer = config.rootpath.is_relative_to(self._folder)
        root = self._folder if outer else config.rootpath
        self._audit = Audit(packages=packages, root=root, tests_alone=True)
        self._watching = ExitStack()
        self._watching.enter_context(self._audit.watching())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass a worker's findings to the controller; in the controller, fail and write the file."""
        self._watching.close()
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = json.dumps(self._audit.export())  # xdist sends only plain types
            return
        errors = any(one.severity == "error" for one in self._audit.findings)
        if errors and self._config.getoption("doclock_audit_strict"):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        for file, suffix in self._files.items():
            if file:
                (self._folder / file).write_text(self._text_in(suffix), encoding="utf-8")

    def _text_in(self, suffix: str) -> str:
        if suffix == ".json":
            return self._audit.to_json()
        return self._audit.to_sarif() if suffix == ".sarif" else self._audit.to_html()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's findings; a crashed worker has none."""
        exported = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if exported is not None:
            self._audit.merge(json.loads(exported))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the findings."""
        terminalreporter.ensure_newline()
        terminalreporter.section("audit (sa_doclock)")
        for line in self._audit.report().splitlines():
            terminalreporter.write_line(line)
        for file in filter(None, self._files):
            terminalreporter.write_line(f"written to {file}")

    def pytest_unconfigure(self) -> None:
        """Stop watching if the run ended before its tests."""
        self._watching.close()
