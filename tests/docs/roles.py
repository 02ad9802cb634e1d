"""The table of docs/adding-a-dialect.md: the objects of a strategy, and their subjects."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent

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


def table() -> Iterator[str]:
    """Yield a row for each object, with the docstring that it has in the strategy."""
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
