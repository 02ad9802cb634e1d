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
        f"{OPTION}-html",
        metavar="FILE",
        help="the same, and write its findings there as a page of HTML",
    )
    group.addoption(
        f"{OPTION}-package",
        action="append",
        default=[],
        metavar="NAME",
        help="an installed package that is the program's own, beside those whose source is in the project",
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


def is_wanted(config: pytest.Config) -> bool:
    """Return whether an option asks for the audit."""
    return config.getoption("doclock_audit") is not None or bool(
        config.getoption("doclock_audit_html")
    )


def _check_writable(file: Path) -> None:
    from sa_doclock.testing.audit import check_writable  # noqa: PLC0415

    try:
        check_writable(file)
    except OSError as error:
        raise pytest.UsageError(f"{file} cannot be written: {error.strerror}") from None


class RunAudit:
    """Watches from the configuration on, and reports at the end."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin to watch.

        :raises pytest.UsageError: the name of a file does not tell its format, or it cannot be written.
        """
        file, html = config.getoption("doclock_audit"), config.getoption("doclock_audit_html")
        if file and Path(file).suffix not in _SUFFIXES:
            raise pytest.UsageError(f"{OPTION}={file}: the name ends with .json or .sarif")
        # SQLAlchemy, only where it is used.
        from sa_doclock.testing import Audit  # noqa: PLC0415

        self._files = {file: Path(file or "").suffix, html: ".html"}
        self._folder = config.invocation_params.dir
        if not hasattr(config, "workerinput"):  # a worker of pytest-xdist writes none
            for one in filter(None, self._files):
                _check_writable(self._folder / one)
        self._config = config
        packages = config.getoption("doclock_audit_package")
        self._audit: Audit = Audit(packages=packages, root=config.rootpath, tests_alone=True)
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
        for file, suffix in self._files.items():
            if file:
                (self._folder / file).write_text(self._text_in(suffix), encoding="utf-8")

    def _text_in(self, suffix: str) -> str:
        if suffix == ".json":
            return self._audit.to_json()
        return self._audit.to_sarif() if suffix == ".sarif" else self._audit.to_html()

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
        for file in filter(None, self._files):
            terminalreporter.write_line(f"written to {file}")

    def pytest_unconfigure(self) -> None:
        """Watch no more, where the run has ended before its tests."""
        self._watching.close()
