"""The tables of the reference: public names, the objects of a strategy, metrics, the checks of the doctor."""

from __future__ import annotations

import ast
import inspect
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from importlib import import_module
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy.orm import Session

import sa_doclock
import sa_doclock.events
import sa_doclock.testing
from sa_doclock import _RETURNED, Checkout, DeadlockDetected, LockingSession, LockOptions
from sa_doclock.dialects.base import (
    Cluster,
    CommitOutcomes,
    ErrorCodes,
    IsolationLevels,
    LockMonitoring,
    LockStatements,
    LockStrategy,
    LockWaits,
    NamedLocks,
    ServerClock,
    ServerHoldLimit,
    TransactionLifecycle,
    TransactionMarks,
    TransactionStatus,
)
from sa_doclock.events import ReleasedLock, RequestedLock
from sa_doclock.opentelemetry import instrument, uninstrument
from sa_doclock.tools.doctor import (
    Check,
    checkouts,
    checks_in,
    every_database,
    models,
    mssql,
    mysql,
    postgresql,
    postgresql_poolers,
    sqlite,
)
from tests.docs.pages import ROOT, text_of
from tests.sql.models import Order

# --------------------------------------------------------------------------------------------------
# Builds the table of docs/api/README.md: each public name, its version and first sentence.

RETURNED: Final = _RETURNED
SINCE_FILE: Final = ROOT / "docs" / "site" / "since.json"
PAGES: Final = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "api").glob("*.md")
)
_DIRECTIVE = re.compile(r"^::: sa_doclock\.(\S+)$", re.MULTILINE)


def since() -> Mapping[str, str]:
    """Return the version that introduced each public name; a method as ``LockingSession.lock``."""
    versions: dict[str, list[str]] = json.loads(SINCE_FILE.read_text(encoding="utf-8"))
    return {name: version for version, names in versions.items() for name in names}


def public_names() -> list[str]:
    """Return the names that users import, the methods of LockingSession, and its events."""
    added = set(dir(sa_doclock.LockingSession)) - set(dir(Session))
    methods = sorted(f"LockingSession.{name}" for name in added if not name.startswith("_"))
    testing = [f"testing.{name}" for name in sa_doclock.testing.__all__]
    telemetry = ["opentelemetry.instrument", "opentelemetry.uninstrument"]
    events = ["events.LockEvents", "events.RequestedLock"]
    return [*sa_doclock.__all__, *RETURNED, *methods, *events, *testing, *telemetry]


def paths() -> Mapping[str, str]:
    """Return the reference page for each object, by its path in sa_doclock."""
    return {path: page for page in PAGES for path in _DIRECTIVE.findall(text_of(page))}


def public_name(path: str) -> str:
    """Return the name that users import; if its module has the same name, the path contains both."""
    *modules, name = path.split(".")
    return name if name in RETURNED or modules[-1:] == [name] else path


def described() -> Mapping[str, str]:
    """Return the reference page for each name."""
    return {public_name(path): page for path, page in paths().items()}


def table_of_names() -> Iterator[str]:
    """Yield a row for each name."""
    yield "| Name | Since | |"
    yield "|---|---|---|"
    versions, pages = since(), described()
    import_module("sa_doclock.opentelemetry")  # here: building the site does not need its extra
    for name in public_names():
        page = pages[name if name in pages else name.partition(".")[0]].rpartition("/")[2]
        yield f"| [`{name}`]({page}) | {versions[name]} | {_first_sentence(name)} |"


def _first_sentence(name: str) -> str:
    found = operator.attrgetter(name)(sa_doclock)
    text = " ".join((inspect.getdoc(found) or "").split())
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text.replace("``", "`"))
    return re.split(r"(?<=[.])\s|:(?=\s|$)", text)[0].rstrip(".:") + "."


# --------------------------------------------------------------------------------------------------
# Builds the table of docs/adding-a-dialect.md: the objects of a strategy and their subjects.

ROLES: dict[str, type] = {
    "isolation": IsolationLevels,
    "errors": ErrorCodes,
    "statements": LockStatements,
    "waits": LockWaits,
    "status": TransactionStatus,
    "lifecycle": TransactionLifecycle,
    "marks": TransactionMarks,
    "commit_outcomes": CommitOutcomes,
    "named_locks": NamedLocks,
    "hold_limit": ServerHoldLimit,
    "monitoring": LockMonitoring,
    "clock": ServerClock,
    "cluster": Cluster,
}


def table_of_roles() -> Iterator[str]:
    """Yield a row for each object, with its docstring from the strategy."""
    yield "| Object | Class | Subject |"
    yield "|---|---|---|"
    subjects = _docstrings_of_attributes()
    for name, role in ROLES.items():
        file = role.__module__.rpartition(".")[2] + ".py"
        subject = subjects[name].replace("``", "`")
        yield f"| `{name}` | `{role.__name__}` in `{file}` | {subject} |"


def _docstrings_of_attributes() -> dict[str, str]:
    (body,) = ast.parse(dedent(inspect.getsource(LockStrategy))).body
    assert isinstance(body, ast.ClassDef)
    return {
        one.target.id: " ".join(str(after.value.value).split())
        for one, after in pairwise(body.body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


# --------------------------------------------------------------------------------------------------
# Builds the table of docs/monitoring.md: the metrics that OpenTelemetry's own reader reports.

LOCK = LockOptions.ForUpdate


def metrics() -> Iterator[str]:
    """Yield a row for each metric, with the attributes of its values."""
    yield "| metric | unit | measures | attributes |"
    yield "|---|---|---|---|"
    for metric in sorted(_measured(), key=lambda metric: metric.name):
        names = {name for point in metric.data.data_points for name in point.attributes}
        cells = (f"`{metric.name}`", f"`{metric.unit}`", metric.description, _listed(names))
        yield f"| {' | '.join(cells)} |"


def _measured() -> list[Any]:
    reader = InMemoryMetricReader()
    instrument(
        tracer_provider=TracerProvider(shutdown_on_exit=False),
        meter_provider=MeterProvider([reader], shutdown_on_exit=False),
    )
    try:
        with LockingSession() as session:
            _emit_each_event(session)
        data = reader.get_metrics_data()  # before the gauge is emptied
    finally:
        uninstrument()
    assert data is not None
    return [m for r in data.resource_metrics for scope in r.scope_metrics for m in scope.metrics]


def _emit_each_event(session: LockingSession) -> None:
    """Notify the listeners of a program's events, without taking locks."""
    requested = RequestedLock(Order, 42, LOCK, None)
    session.dispatch.before_lock(session, requested)
    session.dispatch.lock_acquired(session, (Order, (42,)), LOCK, 0.0)
    session.dispatch.after_lock(session, requested, [(Order, (42,))], 0.0, None)
    deadlock = DeadlockDetected("made up", entity=Order, ident=42, lock=LOCK)
    session.dispatch.lock_failed(session, deadlock, None)
    session.dispatch.transaction_retried(session, deadlock, 1, None)
    released = [ReleasedLock((Order, (42,)), LOCK, 0.0)]
    session.dispatch.locks_released(session, released, "committed")
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    checkout = Checkout(Order, 42, "Ann", 1, now, now, None, timedelta(0), expired=False)
    session.dispatch.checkout_changed(session, checkout, "checked out")


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


# --------------------------------------------------------------------------------------------------
# Builds the sections of docs/doctor.md: one for each check, from its function's docstring.


def _of_mysql(*names: str) -> list[Check]:
    return [check for check in checks_in(mysql) if check.code.partition("-")[0] in names]


GROUPS: Final[Mapping[str, Sequence[Check]]] = {
    "Every database": checks_in(every_database),
    "Tables of documents": checks_in(models),
    "Check-outs": checks_in(checkouts),
    "PostgreSQL": checks_in(postgresql, postgresql_poolers),
    "MySQL and MariaDB": _of_mysql("innodb", "other"),
    "MySQL": _of_mysql("mysql"),
    "MariaDB": _of_mysql("mariadb"),
    "SQL Server": checks_in(mssql),
    "SQLite": checks_in(sqlite),
}


def sections() -> Iterator[str]:
    """Yield a section for each group of checks, with a subsection for each check."""
    for group, checks in GROUPS.items():
        yield f"## {group}"
        yield ""
        for check in checks:
            yield f"### {check.code}"
            yield ""
            yield f"*{check.severity}*. {' '.join(check.description.split())}"
            yield ""
