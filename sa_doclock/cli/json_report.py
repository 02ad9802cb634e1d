"""The result of a run as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy

from .database import Target
from .workload import Outcome, percentile


def json_report(outcome: Outcome, target: Target) -> dict[str, Any]:
    """Return one JSON object; a name that ends in ``_ms`` holds milliseconds, None where nothing was done."""
    plan, tally = outcome.plan, outcome.tally
    return {
        "database": {
            "url": target.url,
            "product": target.product,
            "version": target.version,
            "default_isolation_level": target.isolation,
        },
        "sqlalchemy": sqlalchemy.__version__,
        "settings": asdict(plan) | {"read": plan.read.name},
        "operations": {
            operation.value: _operation(tally.waits_of(operation)) for operation in plan.operations
        },
        "deadlocks": tally.deadlocks,
        "retries": tally.retries,
        "inconsistencies": {
            "count": outcome.inconsistencies,
            "broken_reads": tally.broken_reads,
            "stale_reads": tally.stale_reads if plan.locks else None,
            "broken_documents": [document._asdict() for document in outcome.broken_documents],
        },
        "errors": {
            "count": tally.error_count,
            "kinds": {name: asdict(kind) for name, kind in sorted(tally.errors.items())},
        },
        "seconds": round(outcome.seconds, 3),
        "interrupted": outcome.interrupted,
        "ok": outcome.ok,
    }


def _operation(waits: Sequence[float]) -> dict[str, int | float | None]:
    return {
        "count": len(waits),
        "wait_p50_ms": _milliseconds(percentile(waits, 50)),
        "wait_p99_ms": _milliseconds(percentile(waits, 99)),
        "wait_max_ms": _milliseconds(max(waits, default=None)),
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
