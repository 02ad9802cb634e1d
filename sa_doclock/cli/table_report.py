"""The results of runs as a table, one column for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rich.table import Table
from rich.text import Text

from .workload import Operation, Outcome, percentile

Runs = Mapping[str, Outcome]
"""Outcomes by the heading of their column."""


def table_of(runs: Runs) -> Table:
    """Return the table of all counts, the runs side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for heading in runs:
        table.add_column(heading, justify="right")
    for label, cell in _rows(runs):
        table.add_row(label, *(cell(outcome) for outcome in runs.values()))
    return table


def _rows(runs: Runs) -> Iterator[tuple[str, Callable[[Outcome], Text | str]]]:
    operations = [
        operation
        for operation in Operation
        if any(operation in outcome.plan.operations for outcome in runs.values())
    ]
    yield "operations done", lambda outcome: f"{outcome.tally.done} of {outcome.plan.total_steps}"
    for operation in operations:
        yield _row(operation, _count)
    yield "wait for the document, p50 / p99 ms", lambda _: ""
    for operation in operations:
        yield _row(operation, _waits)
    yield "inconsistencies", lambda outcome: _good_or_bad(outcome.inconsistencies)
    yield "  broken reads (total is not the sum)", lambda outcome: str(outcome.tally.broken_reads)
    yield "  stale reads (older than their lock)", _stale
    yield "  broken documents at the end", lambda outcome: str(len(outcome.broken_documents))
    yield "errors", lambda outcome: _good_or_bad(outcome.tally.error_count)
    for name in sorted({name for outcome in runs.values() for name in outcome.tally.errors}):
        yield _error_row(name)
    yield "deadlocks", lambda outcome: str(outcome.tally.deadlocks)
    yield "retries", lambda outcome: str(outcome.tally.retries)
    yield "seconds", lambda outcome: f"{outcome.seconds:.1f}"


def _row(
    operation: Operation, cell: Callable[[Outcome, Operation], str]
) -> tuple[str, Callable[[Outcome], str]]:
    return f"  {operation.name}", lambda outcome: cell(outcome, operation)


def _error_row(name: str) -> tuple[str, Callable[[Outcome], str]]:
    return f"  {name}", lambda outcome: str(outcome.tally.count_of(name))


def _count(outcome: Outcome, operation: Operation) -> str:
    return str(len(outcome.tally.waits.get(operation, ())))


def _waits(outcome: Outcome, operation: Operation) -> str:
    waits = outcome.tally.waits.get(operation, ())
    return " / ".join(
        "-" if wait is None else f"{1000 * wait:.1f}"
        for wait in (percentile(waits, 50), percentile(waits, 99))
    )


def _stale(outcome: Outcome) -> str:
    return str(outcome.tally.stale_reads) if outcome.plan.locks else "-"


def _good_or_bad(count: int) -> Text:
    return Text(str(count), style="bold red" if count else "bold green")


def errors_of(runs: Runs) -> Iterator[str]:
    """A line for each class of errors, with its first message."""
    for heading, outcome in runs.items():
        for name, kind in sorted(outcome.tally.errors.items()):
            yield f"{heading}: {kind.count} x {name}, the first: {kind.first}"
