"""``sa-doclock demo``: what goes wrong without locks, and does not with them."""

from __future__ import annotations

import secrets

import typer
from rich.console import Console

from . import demo_scenes
from .console import INTERRUPTED, Url, announce, errors_as_text, results
from .database import Target, open_database
from .demo_scenes import WITH
from .workload import Plan, check_locks, fresh_tables

_POOL = Plan().threads


def demo(url: Url = None) -> None:
    """Show what goes wrong without locks, and not with them.

    A double click, an order that is read while it is changed, and a stress
    run, each without locks and with them.  It takes less than a minute.

    Creates two tables of its own, whose names begin with doclock_stress_,
    and drops them at the end; touches nothing else in the database.

    Exit status: 0 if with locks nothing went wrong, and without them
    something did; 1 otherwise; 2 if the demo cannot be run.
    """
    with errors_as_text(), open_database(url, _POOL) as target:
        out = results()
        announce(out, target)
        with fresh_tables(target.engine):
            check_locks(target.engine, Plan())
            status = _run_scenes(out, target)
    raise typer.Exit(status)


def _run_scenes(out: Console, target: Target) -> int:
    without, locked = demo_scenes.double_click(out, target)
    counts = demo_scenes.busy_order(out, target)
    runs = demo_scenes.stress(out, target, secrets.randbelow(10**6))
    out.print()
    if any(outcome.interrupted for outcome in runs.values()):
        out.print("[bold]Interrupted[/]")
        return INTERRUPTED
    if not (all(clicks.fine for clicks in locked) and not counts.wrong and runs[WITH].ok):
        out.print("[bold red]NOT OK[/]: something went wrong although there were locks")
        return 1
    if all(clicks.fine for clicks in without):
        out.print("[bold red]NOT OK[/]: nothing went wrong without locks, so nothing is proven")
        return 1
    out.print("[bold green]OK[/]: without locks things went wrong, with them nothing did")
    return 0
