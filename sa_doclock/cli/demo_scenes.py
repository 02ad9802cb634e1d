"""The demo's three scenes on the console: an explanation, and a table of the results."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import LockOptions
from .busy_order import OrderCounts, watch_order
from .console import progress_bar
from .database import Target
from .double_click import SAME_LINE, TWO_LINES, Clicks, click_twice
from .stress import run_with_progress
from .table_report import table_of
from .workload import Outcome, Plan

_PLAIN, _UPDATE, _SHARED = LockOptions.None_, LockOptions.ForUpdate, LockOptions.SharedRead
_SECONDS = 2.0  # of each run
WITHOUT, WITH = "without locks", "with locks"

_CODE = """\

    order = session.get_entity(Order, 1, LockOptions.ForUpdate)
    order.lines.append(Line(...))
    order.total = sum(line.value for line in order.lines)
    session.save_changes()
"""


def double_click(out: Console, target: Target) -> tuple[list[Clicks], list[Clicks]]:
    """Two requests at once; return what they did without locks, and with them."""
    _head(out, "1. The double click")
    out.print(
        "Two requests at once: both have read the order before either adds a line,\n"
        "totals again and saves. With a lock the second one waits for the first:"
    )
    out.print(_CODE, markup=False, style="cyan")
    cases = {"the same line twice": SAME_LINE, "two different lines": TWO_LINES}
    without, locked = (
        [click_twice(target.engine, lock, names) for names in cases.values()]
        for lock in (_PLAIN, _UPDATE)
    )
    table = _table()
    for label, *clicks in zip(cases, without, locked, strict=True):
        table.add_row(label, *map(_clicks_text, clicks))
    out.print(table)
    return without, locked


def _clicks_text(clicks: Clicks) -> Text:
    if clicks.errors:
        return Text(f"error: {', '.join(clicks.errors)}", style="bold red")
    numbers = f"total {clicks.total}, lines {sum(clicks.lines.values())}"
    if clicks.fine:
        return Text(f"fine: {numbers}", style="green")
    return Text(f"BROKEN: {numbers}", style="bold red")


def busy_order(out: Console, target: Target) -> OrderCounts:
    """A writer beside a reader; return what the reader with locks has seen."""
    _head(out, "2. Reading an order while it is changed")
    out.print(
        "One thread changes its lines and its total, again and again; another reads them.\n"
        "With locks: the writer takes ForUpdate, the reader SharedRead.\n"
    )
    without, locked = (_count_reads(target, locks) for locks in (False, True))
    table = _table()
    table.add_row("changes", str(without.changes), str(locked.changes))
    table.add_row("reads", str(without.reads), str(locked.reads))
    table.add_row("of them with a wrong total", _count(without.wrong), _count(locked.wrong))
    out.print(table)
    if not without.wrong:
        out.print(
            f"\n(None without locks either: {target.isolation}, the default here, reads both\n"
            "from one snapshot. Those who write are not as lucky.)"
        )
    return locked


def _count_reads(target: Target, locks: bool) -> OrderCounts:
    write, read = (_UPDATE, _SHARED) if locks else (_PLAIN, _PLAIN)
    with progress_bar(WITH if locks else WITHOUT, _SECONDS) as show:
        return watch_order(
            target.engine,
            write,
            read,
            _SECONDS,
            lambda passed, seen: show(passed, f"{seen.reads} reads, {seen.wrong} wrong"),
        )


def stress(out: Console, target: Target, seed: int) -> dict[str, Outcome]:
    """The stress run without locks and with them; without a rest when Ctrl-C is pressed."""
    plans = {WITHOUT: Plan(seed=seed, locks=False), WITH: Plan(seed=seed)}
    plan = plans[WITH]
    _head(out, "3. Stress")
    out.print(
        f"{plan.threads} threads x {plan.iterations} operations on {plan.documents} documents:\n"
        "UPSERT sets a line, DELETE removes one, both total again; LOAD reads and checks.\n"
    )
    runs: dict[str, Outcome] = {}
    for heading, each in plans.items():
        runs[heading] = run_with_progress(heading, target, each)
        if runs[heading].interrupted:
            break
    out.print(table_of(runs))
    if not runs[WITHOUT].inconsistencies and runs[WITHOUT].tally.error_count:
        out.print("\n(Without locks this database refuses what others would let become wrong.)")
    return runs


def _head(out: Console, text: str) -> None:
    out.print(f"\n{text}", style="bold")


def _table() -> Table:
    table = Table("", WITHOUT, WITH, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns[1:]:
        column.justify = "left"
    return table


def _count(number: int) -> Text:
    return Text(str(number), style="bold red" if number else "bold green")
