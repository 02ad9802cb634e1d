"""The table of docs/adding-a-dialect.md: the facts and methods of each role of a strategy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sa_doclock.dialects.base import (
    Cluster,
    ConnectionState,
    ErrorCodes,
    IsolationLevels,
    Locking,
    LockMonitoring,
    LockStatements,
    LockWaits,
    NamedLocks,
    Pipelining,
    ServerHoldLimit,
    TransactionLifecycle,
    TransactionMarks,
    TransactionStatus,
)

ROLES = (
    Locking,
    ErrorCodes,
    ConnectionState,
    IsolationLevels,
    LockStatements,
    LockWaits,
    ServerHoldLimit,
    NamedLocks,
    Pipelining,
    TransactionStatus,
    TransactionLifecycle,
    TransactionMarks,
    LockMonitoring,
    Cluster,
)


def table() -> Iterator[str]:
    """Yield a row for each role, with its answers in the order of its source."""
    yield "| Role | Facts | Methods |"
    yield "|---|---|---|"
    for role in ROLES:
        methods = [name for name, value in vars(role).items() if callable(value)]
        file = role.__module__.replace(".", "/") + ".py"
        cells = (f"`{role.__name__}` in `{file}`", _listed(role.__annotations__), _listed(methods))
        yield f"| {' | '.join(cells)} |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if not name.startswith("_"))
