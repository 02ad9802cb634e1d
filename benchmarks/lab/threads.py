"""Many threads in one process: the updates a second of each way, measured in turn."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from benchmarks.lab.figures import Figure
from benchmarks.lab.pairing import Effort, interval
from benchmarks.ways import Way

Document = Callable[[int], int]
"""The document that a thread updates, by thread number."""


class Rates(NamedTuple):
    """Updates a second of each way, in each round; and the number of failed updates."""

    by_way: Mapping[str, list[float]]
    errors: int

    def median(self, way: str) -> float:
        return statistics.median(self.by_way[way])

    def ratio(self, way: str, to: str) -> Figure:
        pairs = zip(self.by_way[way], self.by_way[to], strict=True)
        return interval([one / other for one, other in pairs])


def compare(
    ways: Mapping[str, Way], threads: int, document: Document, effort: Effort, length: float
) -> Rates:
    """:param length: seconds to measure one way at a time."""
    fewest = 2 if effort.seconds else 1
    rounds = effort.rounds or max(fewest, round(effort.seconds / (length * len(ways))))
    rates: dict[str, list[float]] = {name: [] for name in ways}
    errors = 0
    for way in ways.values():
        rate(way, threads, document, length / 4)  # prepares the statements
    for number in range(rounds):
        names = list(ways)
        start = number % len(names)
        for name in names[start:] + names[:start]:
            found, failed = rate(ways[name], threads, document, length)
            rates[name].append(found)
            errors += failed
    return Rates(rates, errors)


def rate(way: Way, threads: int, document: Document, seconds: float) -> tuple[float, int]:
    """Return the updates a second of all threads together, and the number of failed updates."""
    start = threading.Barrier(threads + 1)
    asked, done = [0] * threads, [0] * threads
    over = threading.Event()

    def work(thread: int) -> None:
        number = document(thread)
        with suppress(SQLAlchemyError):  # a repeated error is counted below
            way.update(number)  # so that each thread has a connection
        start.wait()
        while not over.is_set():
            asked[thread] += 1
            with suppress(SQLAlchemyError):
                way.update(number)
                done[thread] += 1

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    over.wait(seconds)
    over.set()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - began
    return max(sum(done), 1) / took, sum(asked) - sum(done)
