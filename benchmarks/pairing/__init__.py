"""What the benchmarks share: two ways of doing the same, measured in turn in one process.

The figure is the ratio of each pair, its median and a 95 % bootstrap interval; an absolute
time would say more of the machine than of the code.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import sqlalchemy
from sqlalchemy import Engine, create_engine

SERVERS = ("POSTGRESQL", "MYSQL", "MARIADB")


class Pair(NamedTuple):
    """One operation, done in two ways."""

    name: str
    goal: float  # the second over the first
    first: Callable[[], None]
    second: Callable[[], None]


class Ratio(NamedTuple):
    """The second over the first."""

    median: float
    low: float
    high: float


def measure(pair: Pair, rounds: int, repeat: int) -> dict[str, Ratio]:
    spent(pair.first, repeat)
    spent(pair.second, repeat)
    ratios: dict[str, list[float]] = {"cpu": [], "wall": []}
    for number in range(rounds):
        both = {}  # in alternating order: who comes first finds other caches
        for which in (0, 1) if number % 2 else (1, 0):
            both[which] = spent((pair.first, pair.second)[which], repeat)
        ratios["cpu"].append(both[1][0] / both[0][0])
        ratios["wall"].append(both[1][1] / both[0][1])
    return {clock: interval(values) for clock, values in ratios.items()}


def spent(operation: Callable[[], None], repeat: int) -> tuple[float, float]:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeat):
        operation()
    return time.process_time() - cpu, time.perf_counter() - wall


def interval(values: list[float], samples: int = 2000) -> Ratio:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(samples))
    return Ratio(
        statistics.median(values), medians[samples * 25 // 1000], medians[samples * 975 // 1000]
    )


@contextmanager
def engines() -> Iterator[list[Engine]]:
    with tempfile.TemporaryDirectory() as folder:
        found = [create_engine(f"sqlite:///{Path(folder) / 'benchmark.db'}")]
        urls = (os.environ.get(f"SA_DOCLOCK_TEST_{server}_URL") for server in SERVERS)
        found += [create_engine(url, isolation_level="READ COMMITTED") for url in urls if url]
        try:
            yield found
        finally:
            for engine in found:
                engine.dispose()


def version(engine: Engine) -> str:
    with engine.connect() as connection:
        name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
        number = connection.dialect.server_version_info or ()
        return f"{name} {'.'.join(str(part) for part in number)}"


def main(
    question: str, prepare: Callable[[Engine], list[Pair]], clean: Callable[[Engine], None]
) -> None:
    """Measure what ``prepare`` returns for each database, and print it as it comes.

    :param question: the docstring of the script, whose first line is the question.
    """
    parser = argparse.ArgumentParser(description=question.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="pairs of measurements")
    parser.add_argument("--repeat", type=int, default=40, help="operations a measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    print(question.splitlines()[0])
    print(
        f"SQLAlchemy {sqlalchemy.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; ratios, second over first [95 % interval]"
    )
    results = []
    with engines() as found:
        for engine in found:
            clean(engine)
            for pair in prepare(engine):
                ratios = measure(pair, arguments.rounds, arguments.repeat)
                figures = "   ".join(
                    f"{clock} {ratio.median:.3f} [{ratio.low:.3f} .. {ratio.high:.3f}]"
                    for clock, ratio in ratios.items()
                )
                print(
                    f"{version(engine):20} {pair.name:32} {figures}   goal {pair.goal}", flush=True
                )
                results.append(
                    {"database": version(engine), "operation": pair.name, "goal": pair.goal}
                    | {clock: ratio._asdict() for clock, ratio in ratios.items()}
                )
            clean(engine)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
