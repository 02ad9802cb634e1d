"""Measure how many documents a second one process updates without waiting for locks.

1 to 64 threads, each with a document and a separate connection: Python's lock on the
interpreter decides, so what counts is how little the client computes.  SQLAlchemy's ORM by
hand and sa_doclock take turns.

    python -m benchmarks.scale [--databases postgresql] [--json FILE] [--plot DIR]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import clean, fill, totals_are_right
from benchmarks.lab.places import Place
from benchmarks.lab.threads import compare
from benchmarks.ways.doclock import doclock, whole
from benchmarks.ways.orm import orm

SECONDS = 5.0  # for one number of threads
SLICE = 0.4
THREADS = (1, 4, 16, 64)
QUICK_THREADS, TINY_THREADS = (1, 16), (1, 4)
MAKERS = {"orm": orm, "entity": doclock, "document": whole}


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql",), measure)


def measure(run: script.Script, place: Place) -> None:
    numbers = TINY_THREADS if run.tiny else QUICK_THREADS if run.quick else THREADS
    fill(place.engine(), documents=max(numbers))
    options: dict[str, Any] = {"pool_size": max(numbers), "max_overflow": 0}
    ways = {name: make(place.engine(**options)) for name, make in MAKERS.items()}
    title = f"{run.findings.servers[place.name]}, updates a second"
    names = [f"{way.name}" for way in ways.values()]
    table = run.table(title, "threads", *names, "get_entity / ORM", "get_document / ORM")
    curve: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    errors = 0
    for threads in numbers:
        length = 0.02 if run.tiny else SLICE
        rates = compare(ways, threads, own, run.effort(SECONDS), length)
        errors += rates.errors
        row = [f"{threads}"]
        for name, way in ways.items():
            curve[way.name].append((threads, rates.median(name)))
            row.append(f"{curve[way.name][-1][1]:.0f}")
        for name in ("entity", "document"):
            figure = rates.ratio(name, "orm")
            run.findings.note(f"{place.name}.{name}.threads_{threads}.to_orm", figure)
            row.append(str(figure))
        table.add_row(*row)
    run.show(table)
    run.findings.series[f"{place.name}.curve"] = curve
    run.findings.note(f"{place.name}.errors", Figure(errors))
    right = totals_are_right(place.engine())
    run.findings.note(f"{place.name}.wrong_documents", Figure(0 if right else 1))
    clean(place.engine())


def own(thread: int) -> int:
    return thread + 1


if __name__ == "__main__":
    main()
