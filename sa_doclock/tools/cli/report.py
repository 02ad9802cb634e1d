"""The results of runs: as a table with a column for each run, or of one run as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy
from rich.table import Table
from rich.text import Text

from .database import Target
from .workload import Outcome, percentile

Runs = Mapping[str, Outcome]
"""Outcomes by the heading of their column."""


def table_of(runs: Runs) -> Table:
    """Return the table of all counts, runs of the same operations side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for heading in runs:
        table.add_column(heading, justify="right")
    errors = sorted({name for outcome in runs.values() for name in outcome.tally.errors})
    columns = [_column(outcome, errors) for outcome in runs.values()]
    for row in zip(*columns, strict=True):
        table.add_row(row[0][0], *(cell for _, cell in row))
    return table


def _column(outcome: Outcome, errors: Sequence[str]) -> Iterator[tuple[str, Text | str]]:
    """Yield the cells of a run, each with the label of its row."""
    tally, operations = outcome.tally, outcome.plan.operations
    yield "operations done", f"{tally.done} of {outcome.plan.total_steps}"
    for operation in operations:
        yield f"  {operation.name}", str(len(tally.waits_of(operation)))
    yield "wait for the document, p50 / p99 ms", ""
    for operation in operations:
        yield f"  {operation.name}", _percentiles(tally.waits_of(operation))
    yield "inconsistencies", good_or_bad(outcome.inconsistencies)
    yield "  broken reads (total is not the sum)", str(tally.broken_reads)
    stale_reads = str(tally.stale_reads) if outcome.plan.locks else "-"
    yield "  stale reads (older than their lock)", stale_reads
    yield "  broken documents at the end", str(len(outcome.broken_documents))
    yield "errors", good_or_bad(tally.error_count)
    for name in errors:
        yield f"  {name}", str(tally.count_of(name))
    yield "deadlocks", str(tally.deadlocks)
    yield "retries", str(tally.retries)
    yield "seconds", f"{outcome.seconds:.1f}"


def _percentiles(waits: Sequence[float]) -> str:
    return " / ".join(
        "-" if wait is None else f"{1000 * wait:.1f}"
        for wait in (percentile(waits, 50), percentile(waits, 99))
    )


def good_or_bad(count: int) -> Text:
    """Return a count of what is wrong: red, or green for none."""
    return Text(str(count), style="bold red" if count else "bold green")


def errors_of(runs: Runs) -> Iterator[str]:
    """Yield a line for each class of errors, with its first message."""
    for heading, outcome in runs.items():
        for name, kind in sorted(outcome.tally.errors.items()):
            yield f"{heading}: {kind.count} x {name}, the first: {kind.first}"


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
