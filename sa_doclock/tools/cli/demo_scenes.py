"""The scenes of the demo: a double click, and an order that is read while it is changed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError, Event
from time import perf_counter

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from ... import LockingSession, LockOptions
from .workload import NAMES, Detail, Document, State, fill

WAIT = 30.0
"""Seconds that a request waits for the other to have read the order too, before it writes.

The worst timing, every time: also where the other is slow to get its connection.
"""

WAIT_WITH_LOCK = 0.5
"""With a lock the other cannot come."""

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
    """Let two requests, each in its session, add the lines of these names at once."""
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
    """Change and read for so long.

    :param report: called after each read with the seconds that have passed.
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
    # Of a declared document, the guard would refuse what is written without the lock.
    return sessionmaker(engine, class_=LockingSession, guard="raise" if lock else "off")
