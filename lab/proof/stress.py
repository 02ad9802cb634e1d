"""The stress run, and the same operations without locks, which must show the errors that locks prevent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lab.proof.page import Part, table
from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.workload import Plan, RunOutcome, check_locks, fresh_tables, run

_SEED = 1


def stress(url: str, threads: int, iterations: int) -> Part:
    """Run it with header locks, with document locks, and without locks."""
    plan = Plan(threads=threads, iterations=iterations, seed=_SEED)
    plans = {
        "with locks": plan,
        "with locks, whole documents": replace(plan, whole=True),
        "control: without locks": replace(plan, locks=False),
    }
    outcomes: dict[str, RunOutcome] = {}
    with open_database(url, threads) as target:
        for name, one in plans.items():
            with fresh_tables(target.engine):
                check_locks(target.engine, one)
                outcomes[name] = run(target.engine, one)
    return shown(outcomes)


def shown(outcomes: Mapping[str, RunOutcome]) -> Part:
    """Return the table; it holds if only the run without locks found errors."""
    rows = [_row(name, outcome) for name, outcome in outcomes.items()]
    locked = all(outcome.ok for outcome in outcomes.values() if outcome.plan.locks)
    control = all(
        outcome.inconsistencies for outcome in outcomes.values() if not outcome.plan.locks
    )
    lines = list(table(rows))
    if not control:
        lines += ["", "The control has found nothing, so that this run proves nothing."]
    return Part("Stress", lines, holds=locked and control)


def _row(name: str, outcome: RunOutcome) -> Mapping[str, object]:
    tally = outcome.tally
    return {
        "run": name,
        "operations": f"{tally.done} of {outcome.plan.total_steps}",
        "inconsistencies": outcome.inconsistencies,
        "errors": tally.error_count,
        "deadlocks": tally.deadlocks,
        "seconds": f"{outcome.seconds:.1f}",
    }
