"""The results of runs as a table, one column for each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

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
