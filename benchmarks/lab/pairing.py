"""Several ways to do the same work, measured in turn in one process.

The figure is the ratio of two ways in the same round: its median, with a 95 % bootstrap interval.  An
absolute time would say more about the machine than about the code.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.lab.figures import Figure

_MOST = 200  # rounds


class Effort(NamedTuple):
    """The amount of measurement: a time, or a number of rounds."""

    seconds: float  # for one comparison, with all its ways
    rounds: int | None = None  # exactly this many
    repeat: int | None = None  # operations of one way in one round; None: as many as fit
    fewest: int = 5  # rounds, however long they take
    slice: float = 0.06  # seconds to measure one way at a time


class Spent(NamedTuple):
    """Seconds for one operation."""

    cpu: float
    wall: float


Way = Callable[[], object]
Rounds = Mapping[str, Sequence[Spent]]


def compare(ways: Mapping[str, Way], effort: Effort) -> Rounds:
    """Measure all ways in every round, in changing order: the first way finds other caches."""
    repeat = effort.repeat or _repeat(ways, effort.slice)
    for way in ways.values() if effort.repeat is None else ():
        _run(way, min(repeat, 12))  # psycopg prepares a statement at its sixth use
    order = random.Random(0)
    names = list(ways)
    rounds: dict[str, list[Spent]] = {name: [] for name in ways}
    gc.collect()
    gc.freeze()  # each collection below covers only the previous way's garbage, not all modules
    end = time.monotonic() + effort.seconds
    done = 0
    while not _enough(done, effort, end):
        order.shuffle(names)
        for name in names:
            rounds[name].append(spent(ways[name], repeat))
        done += 1
    gc.unfreeze()
    return rounds


def _enough(done: int, effort: Effort, end: float) -> bool:
    if effort.rounds is not None:
        return done >= effort.rounds
    return done >= effort.fewest and (done >= _MOST or time.monotonic() > end)


def _repeat(ways: Mapping[str, Way], seconds: float) -> int:
    slowest = 0.0
    for way in ways.values():
        _run(way, 2)
        slowest = max(slowest, spent(way, 2).wall)
    return max(1, min(100, round(seconds / slowest)))


def spent(way: Way, repeat: int) -> Spent:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    _run(way, repeat)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Spent(cpu / repeat, wall / repeat)


def _run(way: Way, times: int) -> None:
    for _ in range(times):
        way()


def ratio(rounds: Rounds, way: str, to: str, clock: str) -> Figure:
    """Return the ratio of this way to the other."""
    pairs = zip(rounds[way], rounds[to], strict=True)
    return interval([getattr(one, clock) / (getattr(other, clock) or 1e-9) for one, other in pairs])


def interval(values: Sequence[float], samples: int = 2000) -> Figure:
    """Return the median, with the range that covers it in 95 of 100 repetitions."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(samples))
    return Figure(
        statistics.median(values), medians[samples * 25 // 1000], medians[samples * 975 // 1000]
    )


def milliseconds(rounds: Rounds, way: str, clock: str = "wall") -> float:
    seconds: list[float] = [getattr(one, clock) for one in rounds[way]]
    return statistics.median(seconds) * 1000
