"""A pytest plugin that replaces the sessions of the tested package by ours.

``-p locking_sessions`` loads it before a test module imports a Session.  It also writes the results of
the tests to a file.  It is outside our package ``tests``, because the tested package may have one too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from sqlalchemy import event
from sqlalchemy.orm import SessionEvents

from sa_doclock import AsyncLockingSession, LockingSession
from sa_doclock.core.session import hooks


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Skip the extensions of PostgreSQL that SQLAlchemy's tests create: some servers lack them."""
    if package in {"sqlalchemy", ""}:
        provision: Any = import_module("sqlalchemy.dialects.postgresql.provision")
        provision._extensions.clear()


def pytest_report_header() -> str:
    """Return a line that names the tested sessions."""
    return f"SQLAlchemy {sqlalchemy.__version__}, {sqlalchemy.orm.Session.__name__}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the ids of the failed, passed and skipped tests."""
    kinds = {"failed": ("failed", "error"), "passed": ("passed",), "skipped": ("skipped",)}
    results = {
        name: sorted(
            {report.nodeid for kind in reported for report in terminalreporter.stats.get(kind, ())}
        )
        for name, reported in kinds.items()
    }
    path = Path(os.environ["SA_DOCLOCK_COMPAT_RESULTS"])
    path.write_text(json.dumps(results), encoding="utf-8")


def replace_sqlalchemy() -> None:
    """Make SQLAlchemy's tests use our sessions, and session makers for them."""
    # Not sqlalchemy.orm.session.Session: a test lists the methods that this very class defines.
    replaced: Any = (
        (sqlalchemy.orm, "Session", sqlalchemy.orm.sessionmaker, LockingSession),
        (
            sqlalchemy.ext.asyncio,
            "AsyncSession",
            sqlalchemy.ext.asyncio.async_sessionmaker,
            AsyncLockingSession,
        ),
    )
    for module, name, maker, ours in replaced:
        setattr(module, name, ours)
        maker.__init__.__kwdefaults__["class_"] = ours
    # After each test they remove all session listeners; ours belong to no test.
    events: Any = SessionEvents
    clear = events._clear
    names = [name for name in vars(hooks) if hasattr(events, name[1:])]

    def clear_and_listen(_: object) -> None:
        clear()
        for name in names:
            event.listen(hooks.SessionWithContext, name[1:], getattr(hooks, name))

    events._clear = classmethod(clear_and_listen)


def replace_in(module: str, name: str, ours: type[Any]) -> None:
    """Replace a Session class of another package by a class that combines it with ours."""
    theirs = getattr(import_module(module), name)
    made = type(name, (theirs, ours), {"__module__": module})
    package = module.partition(".")[0]
    for loaded in [one for key, one in sys.modules.items() if key.partition(".")[0] == package]:
        for key, value in [*vars(loaded).items()]:
            if value is theirs:
                setattr(loaded, key, made)


if not os.environ["SA_DOCLOCK_COMPAT_COLLECT_GARBAGE"]:
    gc.disable()
package = os.environ["SA_DOCLOCK_COMPAT_PACKAGE"]
if package == "sqlalchemy":
    replace_sqlalchemy()
elif package == "sqlmodel":
    replace_in("sqlmodel.orm.session", "Session", LockingSession)
    replace_in("sqlmodel.ext.asyncio.session", "AsyncSession", AsyncLockingSession)
elif package == "flask_sqlalchemy":
    replace_in("flask_sqlalchemy.session", "Session", LockingSession)
# else the stock sessions, for comparison
