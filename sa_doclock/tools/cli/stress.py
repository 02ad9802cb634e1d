"""``sa-doclock stress``: the stress fixture on a database of the user's choice."""

from __future__ import annotations

import enum
import json
import secrets
from typing import Annotated, Optional

import typer

from ... import LockOptions
from .console import INTERRUPTED, Url, announce, errors_as_text, progress_bar, results
from .database import Target, open_database
from .report import errors_of, json_report, table_of
from .workload import Outcome, Plan, check_locks, fresh_tables, run

WITHOUT, WITH = "without locks", "with locks"


class Read(str, enum.Enum):
    """The values of ``--read``."""

    shared = "shared"
    snapshot = "snapshot"


_LOCKS = {Read.shared: LockOptions.SharedRead, Read.snapshot: LockOptions.SnapshotRead}


def stress(
    url: Url = None,
    documents: Annotated[int, typer.Option(min=1, help="D0, D1, ...")] = 5,
    threads: Annotated[int, typer.Option(min=1, max=1000, help="Each with a connection.")] = 30,
    iterations: Annotated[int, typer.Option(min=1, help="Operations of each thread.")] = 50,
    no_locks: Annotated[
        bool, typer.Option("--no-locks", help="Plain reads instead: must find inconsistencies.")
    ] = False,
    details_only: Annotated[
        bool, typer.Option("--details-only", help="Writers move value between two details.")
    ] = False,
    read: Annotated[Read, typer.Option(help="The lock of the readers.")] = Read.shared,
    whole: Annotated[
        bool, typer.Option("--whole", help="Read documents with get_document().")
    ] = False,
    seed: Annotated[
        Optional[int],  # noqa: UP045  # as Url
        typer.Option(
            help="The same seed: the same operations in each thread.", show_default="random"
        ),
    ] = None,
    json_wanted: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")
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
                typer.echo(json.dumps(json_report(outcome, target), indent=2))
            else:
                _print_report(outcome)
    if not outcome.ok:
        found = outcome.inconsistencies or outcome.tally.error_count
        raise typer.Exit(INTERRUPTED if outcome.interrupted and not found else 1)


def run_with_progress(label: str, target: Target, plan: Plan) -> Outcome:
    """Run, and show meanwhile how far it is and what it has found."""
    with progress_bar(label, plan.total_steps) as show:
        return run(
            target.engine,
            plan,
            lambda tally: show(
                tally.done, f"{tally.wrong_reads} inconsistencies, {tally.error_count} errors"
            ),
        )


def _announce(plan: Plan, target: Target) -> None:
    out = results()
    announce(out, target)
    out.print(
        f"{plan.threads} threads x {plan.iterations} operations on {plan.documents} documents, "
        f"seed {plan.seed}"
    )


def _print_report(outcome: Outcome) -> None:
    out = results()
    runs = {WITH if outcome.plan.locks else WITHOUT: outcome}
    out.print()
    out.print(table_of(runs))
    for line in errors_of(runs):
        out.print(line, markup=False, soft_wrap=True)
    out.print()
    out.print(_verdict(outcome))


def _verdict(outcome: Outcome) -> str:
    counted = f"{outcome.inconsistencies} inconsistencies, {outcome.tally.error_count} errors"
    if outcome.interrupted:
        return f"[bold]Interrupted[/]: {counted} so far"
    if outcome.ok:
        return f"[bold green]OK[/]: {counted}"
    if not outcome.plan.locks:
        return f"[bold red]NOT OK[/], as can be expected without locks: {counted}"
    return f"[bold red]NOT OK[/]: {counted}"
