"""How many documents a second does one process update, when nobody waits for anybody?

1 to 64 threads, each with a document and a connection of its own: Python's lock on the
interpreter decides, so what counts is how little the client computes.  SQLAlchemy's ORM by
hand and sa_doclock take turns.

    python -m benchmarks.scale [--databases postgresql] [--json FILE] [--plot DIR]
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import clean, fill, totals_are_right
from benchmarks.lab.pairing import Effort, interval
from benchmarks.lab.places import Place
from benchmarks.ways import Way
from benchmarks.ways.doclock import doclock, whole
from benchmarks.ways.orm import orm

SECONDS = 5.0  # of one number of threads
SLICE = 0.4
THREADS = (1, 4, 16, 64)
MAKERS = {"orm": orm, "entity": doclock, "document": whole}


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        for place in run.places("postgresql"):
            measure(run, place)


def measure(run: script.Script, place: Place) -> None:
    numbers = THREADS[:2] if run.options.rounds else THREADS
    fill(place.engine(), documents=max(numbers))
    options: dict[str, Any] = {"pool_size": max(numbers), "max_overflow": 0}
    ways = {name: make(place.engine(**options)) for name, make in MAKERS.items()}
    title = f"{run.findings.servers[place.name]}, updates a second"
    names = [f"{way.name}" for way in ways.values()]
    table = run.table(title, "threads", *names, "get_entity / ORM", "get_document / ORM")
    curve: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    errors = 0
    for threads in numbers:
        rates, failed = compare(ways, threads, run.effort(SECONDS))
        errors += failed
        row = [f"{threads}"]
        for name, way in ways.items():
            curve[way.name].append((threads, statistics.median(rates[name])))
            row.append(f"{curve[way.name][-1][1]:.0f}")
        for name in ("entity", "document"):
            pairs = zip(rates[name], rates["orm"], strict=True)
            figure = interval([one / base for one, base in pairs])
            run.findings.note(f"{place.name}.{name}.threads_{threads}.to_orm", figure)
            row.append(str(figure))
        table.add_row(*row)
    run.show(table)
    run.findings.series[f"{place.name}.curve"] = curve
    run.findings.note(f"{place.name}.errors", Figure(errors))
    right = totals_are_right(place.engine())
    run.findings.note(f"{place.name}.wrong_documents", Figure(0 if right else 1))
    clean(place.engine())


def compare(
    ways: dict[str, Way], threads: int, effort: Effort
) -> tuple[dict[str, list[float]], int]:
    length = SLICE if effort.repeat is None else 0.02 * effort.repeat
    rounds = effort.rounds or max(3, round(effort.seconds / (length * len(ways))))
    rates: dict[str, list[float]] = {name: [] for name in ways}
    errors = 0
    for number in range(-1, rounds):  # the first warms up
        names = list(ways)
        start = number % len(names)
        for name in names[start:] + names[:start]:
            found, failed = rate(ways[name], threads, length)
            errors += failed
            if number >= 0:
                rates[name].append(found)
    return rates, errors


def rate(way: Way, threads: int, seconds: float) -> tuple[float, int]:
    """Updates a second of all threads together, and how many have failed."""
    start = threading.Barrier(threads + 1)
    asked, counts = [0] * threads, [0] * threads
    over = threading.Event()

    def work(number: int) -> None:
        start.wait()
        while not over.is_set():
            with suppress(sa.exc.SQLAlchemyError):
                asked[number] += 1
                way.update(number + 1)
                counts[number] += 1

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    over.wait(seconds)
    over.set()
    for worker in workers:
        worker.join()
    return max(sum(counts), 1) / (time.perf_counter() - began), sum(asked) - sum(counts)


if __name__ == "__main__":
    main()
