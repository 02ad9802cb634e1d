"""Imports sa-doclock-audit, a separate distribution, when it is used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_PACKAGE: Final = "doclock_audit"

NAMES: Final = frozenset(
    ("Audit", "AuditFinding", "Exploration", "Failure", "audit", "explore", "explore_finding")
)
"""The names of the test kit that the auditor defines."""


def is_installed() -> bool:
    """Return whether the auditor can be imported."""
    return find_spec(_PACKAGE) is not None


def import_auditor(needed_by: str, module: str = "") -> Any:
    """Import the auditor, or a module of it.

    :param needed_by: the name that the program used, with which the error begins.
    :raises ModuleNotFoundError: the auditor is not installed.
    """
    try:
        import_module(_PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:
            raise
        raise ModuleNotFoundError(
            f"{needed_by} needs the package sa-doclock-audit, which is not installed: "
            "pip install 'sa-doclock[audit]'",
            name=_PACKAGE,
        ) from None
    return import_module(f"{_PACKAGE}{module}")
