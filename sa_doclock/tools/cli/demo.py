"""``sa-doclock demo``: three scenes, each without locks and with them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError, Event
from time import perf_counter

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from ... import LockingSession, LockOptions
from .console import INTERRUPTED, Url, announce, errors_as_text, progress_bar, results
from .database import DatabaseTarget, open_database
from .stress import WITH, WITHOUT, good_or_bad, run_with_progress, table_of, verdict
from .workload import (
    NAMES,
    Detail,
    Document,
    Plan,
    RunOutcome,
    State,
    check_locks,
    fill,
    fresh_tables,
)

WAIT = 30.0
"""Seconds that a request waits, before it writes, for the other to have read the order too.

It produces the worst timing every time, even if the other is slow to connect.
"""

WAIT_WITH_LOCK = 0.5
"""With a lock, the other cannot read."""

ORDER = 1
BEFORE: State = {"N0": 10, "N1": 5}
ADDED = 7
SAME_LINE = ("N2", "N2")
TWO_LINES = ("N2", "N3")


@dataclass(frozen=True)
class Clicks:
    """The state of the order after two requests.

    :ivar errors: the classes of the errors that requests ended with.
    """

    errors: tuple[str, ...]
    total: int
    lines: State

    @property
    def fine(self) -> bool:
        """Both requests ended well, and the total is right."""
        return not self.errors and self.total == sum(self.lines.values())


def click_twice(engine: Engine, lock: LockOptions, names: tuple[str, str]) -> Clicks:
    """Let two requests, each in its session, add the lines with these names at once."""
    fill(engine, {ORDER: BEFORE})
    both_have_read = Barrier(2)
    sessions = _sessions(engine, lock)
    with ThreadPoolExecutor(2) as requests:
        submits = [
            requests.submit(_add_line, sessions(), lock, name, both_have_read) for name in names
        ]
    with LockingSession(engine) as session:
        order = session.get_one_entity(Document, ORDER)
        errors = (submit.exception() for submit in submits)
        kinds = tuple(type(error).__name__ for error in errors if error is not None)
        return Clicks(kinds, order.total, order.values())


def _add_line(
    session: LockingSession, lock: LockOptions, name: str, both_have_read: Barrier
) -> None:
    with session:
        order = session.get_one_entity(Document, ORDER, lock)
        missing = name not in order.values()
        with suppress(BrokenBarrierError):
            both_have_read.wait(WAIT_WITH_LOCK if lock else WAIT)
        if missing:
            order.details.append(Detail(name=name, value=ADDED))
            order.add_up()
        session.save_changes()


@dataclass
class OrderCounts:
    """Counts of changes and reads; a ``wrong`` read has a total that is not the sum."""

    changes: int = 0
    reads: int = 0
    wrong: int = 0


def watch_order(
    engine: Engine,
    write: LockOptions,
    read: LockOptions,
    seconds: float,
    report: Callable[[float, OrderCounts], None],
) -> OrderCounts:
    """Change and read for this many seconds.

    :param report: called after each read with the elapsed seconds.
    """
    fill(engine, {ORDER: dict.fromkeys(NAMES, 1)})
    counts, over, began = OrderCounts(), Event(), perf_counter()
    with ThreadPoolExecutor(1) as other:
        writer = other.submit(_change, engine, write, counts, over)
        try:
            while (passed := perf_counter() - began) < seconds and not writer.done():
                _read(engine, read, counts)
                report(passed, counts)
        finally:
            over.set()
    writer.result()
    return counts


def _change(engine: Engine, lock: LockOptions, counts: OrderCounts, over: Event) -> None:
    sessions = _sessions(engine, lock)
    while not over.is_set():
        with sessions() as session:
            order = session.get_one_entity(Document, ORDER, lock)
            for line in order.details:
                line.value = counts.changes % 7
            order.add_up()
            session.save_changes()
        counts.changes += 1


def _read(engine: Engine, lock: LockOptions, counts: OrderCounts) -> None:
    with LockingSession(engine) as session:
        order = session.get_one_entity(Document, ORDER, lock)
        total, lines = order.total, order.values()
        session.release_locks()
    counts.reads += 1
    counts.wrong += total != sum(lines.values())


def _sessions(engine: Engine, lock: LockOptions) -> sessionmaker[LockingSession]:
    # The guard would refuse to write a declared document without its lock.
    return sessionmaker(engine, class_=LockingSession, guard="raise" if lock else "off")


_PLAIN, _UPDATE, _SHARED = LockOptions.None_, LockOptions.ForUpdate, LockOptions.SharedRead
_SECONDS = 2.0  # per run

_CODE = """\

    order = session.get_entity(Order, 1, LockOptions.ForUpdate)
    order.lines.append(Line(...))
    order.total = sum(line.value for line in order.lines)
    session.save_changes()
"""


def demo(url: Url = None) -> None:
    """Show a lost update without locks, and none with them.

    Runs a double click, a read of an order during a change, and a stress run,
    each without locks and with them.  It takes less than a minute.

    Creates two tables of its own, whose names begin with doclock_stress_,
    and drops them at the end; touches nothing else in the database.

    Exit status: 0 if with locks nothing went wrong, and without them
    something did; 1 otherwise; 2 if the demo cannot be run.
    """
    with errors_as_text(), open_database(url, Plan().threads) as target:
        out = results()
        announce(out, target)
        with fresh_tables(target.engine):
            check_locks(target.engine, Plan())
            status = _run_scenes(out, target)
    raise typer.Exit(status)


def _run_scenes(out: Console, target: DatabaseTarget) -> int:
    without, locked = _double_click(out, target)
    counts = _busy_order(out, target)
    runs = _stress(out, target, secrets.randbelow(10**6))
    out.print()
    if any(outcome.interrupted for outcome in runs.values()):
        out.print("Interrupted", style="bold")
        return INTERRUPTED
    if not (all(clicks.fine for clicks in locked) and not counts.wrong and runs[WITH].ok):
        out.print(verdict(ok=False, text=": something went wrong although there were locks"))
        return 1
    if all(clicks.fine for clicks in without):
        out.print(
            verdict(ok=False, text=": nothing went wrong without locks, so nothing is proven")
        )
        return 1
    out.print(verdict(ok=True, text=": without locks things went wrong, with them nothing did"))
    return 0


def _double_click(out: Console, target: DatabaseTarget) -> tuple[list[Clicks], list[Clicks]]:
    """Two requests at once; return their results without locks, and with locks."""
    _head(out, "1. The double click")
    out.print(
        "Two requests at once: both have read the order before either adds a line,\n"
        "totals again and saves. With a lock the second one waits for the first:"
    )
    out.print(_CODE, style="cyan")
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


def _busy_order(out: Console, target: DatabaseTarget) -> OrderCounts:
    """A writer and a reader at once; return the reader's counts with locks."""
    _head(out, "2. Reading an order while it is changed")
    out.print(
        "One thread changes its lines and its total, again and again; another reads them.\n"
        "With locks: the writer takes ForUpdate, the reader SharedRead.\n"
    )
    without, locked = (_count_reads(target, locks) for locks in (False, True))
    table = _table()
    table.add_row("changes", str(without.changes), str(locked.changes))
    table.add_row("reads", str(without.reads), str(locked.reads))
    table.add_row(
        "of them with a wrong total", good_or_bad(without.wrong), good_or_bad(locked.wrong)
    )
    out.print(table)
    if not without.wrong:
        out.print(
            f"\n(None without locks either: {target.isolation}, the default here, reads both\n"
            "from one snapshot. Those who write are not as lucky.)"
        )
    return locked


def _count_reads(target: DatabaseTarget, locks: bool) -> OrderCounts:
    write, read = (_UPDATE, _SHARED) if locks else (_PLAIN, _PLAIN)
    with progress_bar(WITH if locks else WITHOUT, _SECONDS) as show:
        return watch_order(
            target.engine,
            write,
            read,
            _SECONDS,
            lambda passed, seen: show(passed, f"{seen.reads} reads, {seen.wrong} wrong"),
        )


def _stress(out: Console, target: DatabaseTarget, seed: int) -> dict[str, RunOutcome]:
    """The stress run without and with locks; Ctrl-C skips the rest."""
    plans = {WITHOUT: Plan(seed=seed, locks=False), WITH: Plan(seed=seed)}
    plan = plans[WITH]
    _head(out, "3. Stress")
    out.print(
        f"{plan.threads} threads x {plan.iterations} operations on {plan.documents} documents:\n"
        "UPSERT sets a line, DELETE removes one, both total again; LOAD reads and checks.\n"
    )
    runs: dict[str, RunOutcome] = {}
    for heading, each in plans.items():
        runs[heading] = run_with_progress(heading, target, each)
        if runs[heading].interrupted:
            break
    out.print(table_of(runs))
    if not runs[WITHOUT].inconsistencies and runs[WITHOUT].tally.error_count:
        out.print("\n(Without locks this database refuses a change that others would accept.)")
    return runs


def _head(out: Console, text: str) -> None:
    out.print(f"\n{text}", style="bold")


def _table() -> Table:
    return Table("", WITHOUT, WITH, box=None, padding=(0, 2, 0, 0), header_style="bold")
