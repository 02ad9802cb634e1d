"""The demo's second story: one thread changes an order all the time, another reads it."""

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
class Watched:
    """What was counted; ``wrong`` are the reads whose lines did not add up to the total."""

    changes: int = 0
    reads: int = 0
    wrong: int = 0


def watch_order(
    engine: Engine,
    write: LockOptions,
    read: LockOptions,
    seconds: float,
    tell: Callable[[float, Watched], None],
) -> Watched:
    """Change and read for so long.

    :param tell: called after each read with the seconds that have passed.
    """
    fill(engine, {ORDER: dict.fromkeys(NAMES, 1)})
    watched, over, began = Watched(), Event(), perf_counter()
    with ThreadPoolExecutor(1) as other:
        writer = other.submit(_change, engine, write, watched, over)
        try:
            while (passed := perf_counter() - began) < seconds and not writer.done():
                _read(engine, read, watched)
                tell(passed, watched)
        finally:
            over.set()
    writer.result()
    return watched


def _change(engine: Engine, lock: LockOptions, watched: Watched, over: Event) -> None:
    # Of a declared document, the guard would refuse what is written without the lock.
    guard: GuardMode = "raise" if lock else "off"
    while not over.is_set():
        with LockingSession(engine, guard=guard) as session:
            order = session.get_one_entity(Document, ORDER, lock)
            for line in order.details:
                line.value = watched.changes % 7
            order.add_up()
            session.save_changes()
        watched.changes += 1


def _read(engine: Engine, lock: LockOptions, watched: Watched) -> None:
    with LockingSession(engine) as session:
        order = session.get_one_entity(Document, ORDER, lock)
        total, lines = order.total, order.values()
        session.release_locks()
    watched.reads += 1
    watched.wrong += total != sum(lines.values())
