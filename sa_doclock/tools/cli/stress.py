"""``sa-doclock stress``: the stress fixture on a database of the user's choice, and its results."""

from __future__ import annotations

import enum
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Optional

import sqlalchemy
import typer
from rich.table import Table
from rich.text import Text

from ... import LockOptions
from .console import INTERRUPTED, Url, announce, errors_as_text, progress_bar, results, say
from .database import DatabaseTarget, open_database
from .workload import Plan, RunOutcome, check_locks, fresh_tables, percentile, run

Runs = Mapping[str, RunOutcome]
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


def _column(outcome: RunOutcome, errors: Sequence[str]) -> Iterator[tuple[str, Text | str]]:
    """Yield label and cell of each row of a run's column."""
    tally, operations = outcome.tally, outcome.plan.operations
    yield "operations done", f"{tally.done} of {outcome.plan.total_steps}"
    for operation in operations:
        yield f"  {operation.name}", str(len(tally.waits_of(operation)))
    yield "wait for the document, p50 / p99 ms", ""
    for operation in operations:
        waits = [percentile(tally.waits_of(operation), share) for share in (50, 99)]
        texts = ("-" if wait is None else f"{1000 * wait:.1f}" for wait in waits)
        yield f"  {operation.name}", " / ".join(texts)
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


def good_or_bad(count: int) -> Text:
    """Return a count of faults: red, or green for none."""
    return Text(str(count), style="bold red" if count else "bold green")


def errors_of(runs: Runs) -> Iterator[str]:
    """Yield a line for each class of errors, with its first message."""
    for heading, outcome in runs.items():
        for name, kind in sorted(outcome.tally.errors.items()):
            yield f"{heading}: {kind.count} x {name}, the first: {kind.first}"


def json_report(outcome: RunOutcome, target: DatabaseTarget) -> dict[str, Any]:
    """Return one JSON object; a name that ends in ``_ms`` holds milliseconds, None if there were none."""
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


WITHOUT, WITH = "without locks", "with locks"


class ReadLock(str, enum.Enum):
    """The values of ``--read``."""

    shared = "shared"
    snapshot = "snapshot"


_LOCKS = {ReadLock.shared: LockOptions.SharedRead, ReadLock.snapshot: LockOptions.SnapshotRead}


def stress(
    url: Url = None,
    documents: Annotated[int, typer.Option(min=1, help="Number of documents.")] = 5,
    threads: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of threads, each with a connection.")
    ] = 30,
    iterations: Annotated[
        int, typer.Option(min=1, help="Number of operations of each thread.")
    ] = 50,
    no_locks: Annotated[
        bool,
        typer.Option("--no-locks", help="Read without locks, which must find inconsistencies."),
    ] = False,
    details_only: Annotated[
        bool, typer.Option("--details-only", help="Writers move value between two details.")
    ] = False,
    read: Annotated[ReadLock, typer.Option(help="The lock of the readers.")] = ReadLock.shared,
    whole: Annotated[
        bool, typer.Option("--whole", help="Read documents with get_document().")
    ] = False,
    seed: Annotated[
        Optional[int],  # noqa: UP045  # as Url
        typer.Option(help="Repeat the operations of a run with this seed.", show_default="random"),
    ] = None,
    json_wanted: Annotated[
        bool, typer.Option("--json", help="Print only one JSON object.")
    ] = False,
) -> None:
    """Run many threads on a few documents, and check every read.

    A document is a header with a total, and details that add up to it.  Writers lock it
    ForUpdate, set or delete a detail, and total again; readers lock it SharedRead.

    Creates two tables of its own, whose names begin with doclock_stress_, and drops them at
    the end; touches nothing else in the database.

    Exit status: 0 if there was neither an inconsistency nor an error, 1 if there was,
    2 if the run cannot be made.
    """
    plan = Plan(
        documents=documents,
        threads=threads,
        iterations=iterations,
        locks=not no_locks,
        details_only=details_only,
        read=_LOCKS[read],
        whole=whole,
        seed=secrets.randbelow(10**6) if seed is None else seed,
    )
    with errors_as_text(), open_database(url, threads) as target:
        if not json_wanted:
            _announce(plan, target)
        with fresh_tables(target.engine):
            check_locks(target.engine, plan)
            outcome = run_with_progress("stress", target, plan)
            if json_wanted:
                say(json.dumps(json_report(outcome, target), indent=2))
            else:
                _print_report(outcome)
    if not outcome.ok:
        found = outcome.inconsistencies or outcome.tally.error_count
        raise typer.Exit(INTERRUPTED if outcome.interrupted and not found else 1)


def run_with_progress(label: str, target: DatabaseTarget, plan: Plan) -> RunOutcome:
    """Run, showing progress and findings."""
    with progress_bar(label, plan.total_steps) as show:
        return run(
            target.engine,
            plan,
            lambda tally: show(
                tally.done, f"{tally.wrong_reads} inconsistencies, {tally.error_count} errors"
            ),
        )


def _announce(plan: Plan, target: DatabaseTarget) -> None:
    out = results()
    announce(out, target)
    out.print(
        f"{plan.threads} threads x {plan.iterations} operations on {plan.documents} documents, "
        f"seed {plan.seed}"
    )


def _print_report(outcome: RunOutcome) -> None:
    out = results()
    runs = {WITH if outcome.plan.locks else WITHOUT: outcome}
    out.print()
    out.print(table_of(runs))
    for line in errors_of(runs):
        out.print(line, soft_wrap=True)
    out.print()
    out.print(_verdict_of(outcome))


def _verdict_of(outcome: RunOutcome) -> Text:
    counted = f"{outcome.inconsistencies} inconsistencies, {outcome.tally.error_count} errors"
    if outcome.interrupted:
        return Text.assemble(("Interrupted", "bold"), f": {counted} so far")
    expected = "" if outcome.ok or outcome.plan.locks else ", as can be expected without locks"
    return verdict(ok=outcome.ok, text=f"{expected}: {counted}")


def verdict(*, ok: bool, text: str) -> Text:
    """Return the last line of a command: OK or not, in colour, and the text."""
    word = ("OK", "bold green") if ok else ("NOT OK", "bold red")
    return Text.assemble(word, text)
