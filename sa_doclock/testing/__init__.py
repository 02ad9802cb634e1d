"""A kit for the tests of programs that lock documents; it does not need pytest.

``audit()``, ``explore()`` and their classes come from the distribution sa-doclock-audit.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from .concurrent import async_two_at_once, two_at_once
from .records import LockRecord, assert_locked, recorded_locks
from .rollback import rollback_session
from .scheduling import Outcome
from .waiting import wait_until_blocked

if TYPE_CHECKING:
    from doclock_audit import (
        Audit,
        AuditFinding,
        Exploration,
        Failure,
        audit,
        explore,
        explore_finding,
    )

__all__ = [
    "Audit",
    "AuditFinding",
    "Exploration",
    "Failure",
    "LockRecord",
    "Outcome",
    "assert_locked",
    "async_two_at_once",
    "audit",
    "explore",
    "explore_finding",
    "recorded_locks",
    "rollback_session",
    "two_at_once",
    "wait_until_blocked",
]

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


if not is_installed():  # "from sa_doclock.testing import *" imports this module's names
    __all__ = [name for name in __all__ if name not in NAMES]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_auditor(f"{__name__}.{name}"), name)
