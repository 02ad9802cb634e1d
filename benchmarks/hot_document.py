"""Measure the updates a second of one hot document, with 8 threads that update only this one.

Every thread locks the same document, changes a detail and commits, over a TCP proxy that adds
1 ms each way: what counts is how long each holds the lock, not how fast it computes.

    python -m benchmarks.hot_document [--databases postgresql] [--json FILE] [--plot DIR]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Absent, Figure
from benchmarks.lab.models import DeclaredDoc, clean, fill, totals_are_right
from benchmarks.lab.places import Place
from benchmarks.lab.threads import Rates, compare, rate
from benchmarks.ways import Way, doclock, raw
from benchmarks.ways.orm import orm

LATENCY = 0.001  # each way
THREADS = 8
CURVE = (1, 2, 4, 8, 16)
TINY_CURVE = (1, 2)
SECONDS = 24.0  # for the comparison at 8 threads
SLICE, QUICK_SLICE = 0.6, 0.25  # seconds to measure one way at a time


def _gated(engine: sa.Engine) -> Way:
    name = f"{doclock.ENTITY}, gate"
    return doclock.doclock(engine, name, gate=doclock.document_gate())


def _gated_pipeline(engine: sa.Engine) -> Way:
    return doclock.doclock(
        engine,
        f"{doclock.PIPELINE_WHOLE}, gate",
        entity=DeclaredDoc,
        whole=True,
        pipeline=True,
        gate=doclock.document_gate(),
    )


ON_ENGINE: dict[str, Callable[[sa.Engine], Way]] = {
    "orm": orm,
    "entity": doclock.doclock,
    "document": doclock.whole,
    "pipeline": doclock.pipelined,
    "pipeline_document": doclock.pipelined_whole,
    "gate": _gated,
    "pipeline_document_gate": _gated_pipeline,
}
BY_DRIVER = {"raw": raw.raw, "raw_pipelined": raw.pipelined}


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql",), measure)


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    fill(engine)
    ways = made(run, place)
    place.proxy.delay(LATENCY)
    try:
        length = 0.03 if run.tiny else QUICK_SLICE if run.quick else SLICE
        rates = compare(ways, 2 if run.tiny else THREADS, hot, run.effort(SECONDS), length)
        curve = {name: dict[int, float]() for name in ways}
        for threads in TINY_CURVE if run.tiny else () if run.quick else CURVE:
            for name, way in ways.items():
                curve[name][threads], _ = rate(way, threads, hot, length * 0.7)
    finally:
        for way in ways.values():
            way.close()
    run.findings.series[f"{place.name}.curve"] = {
        ways[name].name: list(points.items()) for name, points in curve.items()
    }
    note(run, place, ways, rates)
    wrong = 0 if totals_are_right(engine) else 1
    run.findings.note(f"{place.name}.wrong_documents", Figure(wrong))
    clean(engine)


def made(run: script.Script, place: Place) -> dict[str, Way]:
    """Return all available ways; report to the run why the others are missing."""
    found = ((name, _made(run, place, name)) for name in (*BY_DRIVER, *ON_ENGINE))
    return {name: way for name, way in found if way is not None}


def _made(run: script.Script, place: Place, name: str) -> Way | None:
    most = max(THREADS, *CURVE)
    try:
        if name in BY_DRIVER:
            return BY_DRIVER[name](place.name, place.far_url, most)
        return ON_ENGINE[name](place.engine(place.far_url, pool_size=most, max_overflow=0))
    except Absent as absent:
        run.lacks(f"{place.name}.{name}", absent)
        return None


def hot(_thread: int) -> int:
    return 1


def note(run: script.Script, place: Place, ways: dict[str, Way], rates: Rates) -> None:
    title = f"{run.findings.servers[place.name]}, {THREADS} threads, {LATENCY * 1000:g} ms each way"
    table = run.table(title, "way", "updates a second", "x ORM by hand", "x driver alone")
    for name, way in ways.items():
        row = [way.name, f"{rates.median(name):.0f}"]
        for other in ("orm", "raw"):
            figure = rates.ratio(name, other)
            run.findings.note(f"{place.name}.{name}.to_{other}", figure)
            row.append(str(figure))
        table.add_row(*row)
    run.findings.note(f"{place.name}.errors", Figure(rates.errors))
    run.show(table)


if __name__ == "__main__":
    main()
