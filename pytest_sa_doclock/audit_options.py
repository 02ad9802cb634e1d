"""``--doclock-audit`` and related options of sa-doclock-audit, which the plugin imports only if a
run uses them.
"""

from __future__ import annotations

from copy import copy
from typing import Final

import pytest

_OPTION: Final = "--doclock-audit"


def add_options(group: pytest.OptionGroup) -> None:
    """Add the options."""
    group.addoption(
        _OPTION,
        nargs="?",
        const="",
        metavar="FILE",
        help="find where the program lacks a lock; with =FILE.json or =FILE.sarif, write it there too",
    )
    group.addoption(
        f"{_OPTION}-html",
        metavar="FILE",
        help="the same, and write its findings there as a page of HTML",
    )
    group.addoption(
        f"{_OPTION}-package",
        action="append",
        default=[],
        metavar="NAME",
        help="an installed package that is the program's own, beside those whose source is in the project",
    )
    group.addoption(
        f"{_OPTION}-strict",
        action="store_true",
        help="the run fails if the audit has found an error",
    )


def separate_from_tests(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Stop the option from taking the next argument, a test, as its file."""
    if _OPTION in args:
        args[:] = [f"{_OPTION}=" if arg == _OPTION else arg for arg in args]
        config.known_args_namespace = parser.parse_known_args(args, namespace=copy(config.option))


def begin_audit(config: pytest.Config) -> None:
    """Start to watch the run, if an option requests the audit.

    :raises pytest.UsageError: the auditor is not installed, or an option is wrong.
    """
    html = config.getoption("doclock_audit_html")
    if html == "":
        raise pytest.UsageError(f"{_OPTION}-html needs the name of a file")
    if config.getoption("doclock_audit") is not None or html:
        # The import loads SQLAlchemy: do it only when needed.
        from sa_doclock.testing import import_auditor  # noqa: PLC0415

        try:
            run = import_auditor(_OPTION, ".pytest_run")
        except ModuleNotFoundError as error:
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(run.RunAudit(config), "sa_doclock.audit")
        return
    for name in ("strict", "package"):
        if config.getoption(f"doclock_audit_{name}"):
            raise pytest.UsageError(f"{_OPTION}-{name} needs {_OPTION}")
