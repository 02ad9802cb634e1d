"""The demo's second scene: one thread changes an order all the time, another reads it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from time import perf_counter

from sqlalchemy import Engine

from .. import LockingSession, LockOptions
from ..guard import GuardMode
from .workload import NAMES, Document, fill

ORDER = 1


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
    # Of a declared document, the guard would refuse what is written without the lock.
    guard: GuardMode = "raise" if lock else "off"
    while not over.is_set():
        with LockingSession(engine, guard=guard) as session:
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
