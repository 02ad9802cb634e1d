"""Measure gate.run() on one hot document: 32 threads, 20 functions in a commit.

Every caller locks the same document, changes a detail and saves, by hand or by gate.run(): first over
a TCP proxy that adds 1 ms each way, then without latency.  Without latency it is the flush of each
commit to the disk that can be saved: give a server that has fsync on.

    python -m benchmarks.combined [--databases postgresql,mysql,mariadb] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import DeclaredDoc, clean, fill, totals_are_right
from benchmarks.lab.places import Place
from benchmarks.lab.threads import Rates, compare
from benchmarks.ways import Way, doclock
from benchmarks.ways.orm import change, orm

LATENCY = 0.001  # each way
THREADS = 32
COMBINE = 50
SECONDS = 16.0
SLICE, QUICK_SLICE = 1.0, 0.4  # seconds that one way is measured at a time
BY_RUN, BY_RUN_PIPELINED = "gate.run", "gate.run, pipeline"


def combined(engine: sa.Engine, name: str = BY_RUN, **options: bool) -> Way:
    """Return the way of gate.run(); it has no load."""
    sessions = doclock.session_factory(engine, **options)
    gate = doclock.document_gate(combine=COMBINE)

    def update(number: int) -> None:
        gate.run(sessions, DeclaredDoc, number, lambda _, doc: change(doc))

    return Way(name, update, update)


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql", "mysql", "mariadb"), measure)


def measure(run: script.Script, place: Place) -> None:
    fill(place.engine())
    for name, latency in (("far", LATENCY), ("near", 0.0)):
        place.proxy.delay(latency)
        url = place.far_url if latency else place.url
        engine = place.engine(url, pool_size=THREADS, max_overflow=THREADS)
        _compare(run, place, name, made(place, engine))
    run.findings.note(f"{place.name}.wrong_documents", Figure(not totals_are_right(place.engine())))
    clean(place.engine())


def made(place: Place, engine: sa.Engine) -> dict[str, Way]:
    ways = {"orm": orm(engine), "run": combined(engine)}
    if place.name == "postgresql":
        ways["run_pipeline"] = combined(engine, BY_RUN_PIPELINED, pipeline=True)
    return ways


def _compare(run: script.Script, place: Place, where: str, ways: Mapping[str, Way]) -> None:
    took: dict[str, list[float]] = {name: [] for name in ways}
    timed = {
        name: way._replace(update=_timed(way.update, took[name])) for name, way in ways.items()
    }
    length = 0.05 if run.tiny else QUICK_SLICE if run.quick else SLICE
    threads = 2 if run.tiny else THREADS
    rates = compare(timed, threads, lambda _: 1, run.effort(SECONDS), length)
    _note(run, place, where, timed, rates, {name: _p99(times) for name, times in took.items()})


def _timed(update: Callable[[int], object], took: list[float]) -> Callable[[int], object]:
    def call(number: int) -> None:
        began = time.perf_counter()
        update(number)
        took.append(time.perf_counter() - began)

    return call


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] * 1000


def _note(
    run: script.Script,
    place: Place,
    where: str,
    ways: Mapping[str, Way],
    rates: Rates,
    p99: Mapping[str, float],
) -> None:
    title = f"{run.findings.servers[place.name]}, {THREADS} threads, {where}"
    table = run.table(title, "way", "updates a second", "x ORM by hand", "p99 ms", "x by hand")
    for name, way in ways.items():
        ratio, late = rates.ratio(name, "orm"), p99[name] / p99["orm"]
        if name != "orm":
            run.findings.note(f"{place.name}.{where}.{name}.to_orm", ratio)
            run.findings.note(f"{place.name}.{where}.{name}.p99", Figure(late))
        table.add_row(
            way.name, f"{rates.median(name):.0f}", str(ratio), f"{p99[name]:.1f}", f"{late:.2f}"
        )
    run.findings.note(f"{place.name}.{where}.errors", Figure(rates.errors))
    run.show(table)


if __name__ == "__main__":
    main()
