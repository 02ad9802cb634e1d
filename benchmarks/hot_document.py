"""How many updates a second does one hot document get, when 8 threads want nothing else?

Every thread locks the same document, changes a detail and commits, over a TCP proxy that adds
1 ms each way: what counts is how long each holds the lock, not how fast it computes.

    python -m benchmarks.hot_document [--databases postgresql] [--json FILE] [--plot DIR]
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Absent, Figure
from benchmarks.lab.models import DeclaredDoc, clean, fill, totals_are_right
from benchmarks.lab.pairing import Effort, interval
from benchmarks.lab.places import Place
from benchmarks.ways import Way, doclock, raw
from benchmarks.ways.orm import orm

LATENCY = 0.001  # each way
THREADS = 8
CURVE = (1, 2, 4, 8, 16)
SECONDS = 24.0  # of the comparison at 8 threads
SLICE = 0.6  # seconds that one way is measured at a time


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
        for place in run.places("postgresql"):
            engine = place.engine()
            fill(engine)
            measure(run, place)
            run.findings.note(
                f"{place.name}.wrong_documents", Figure(0 if totals_are_right(engine) else 1)
            )
            clean(engine)


def measure(run: script.Script, place: Place) -> None:
    ways = made(run, place)
    place.proxy.delay(LATENCY)
    try:
        rates = compare(ways, THREADS, run.effort(SECONDS))
        curve = {name: dict[int, float]() for name in ways}
        for threads in () if run.quick else CURVE[: 2 if run.options.rounds else None]:
            for name, way in ways.items():
                curve[name][threads] = rate(way, threads, SLICE * 0.7)
    finally:
        for way in ways.values():
            way.close()
    run.findings.series[f"{place.name}.curve"] = {
        ways[name].name: list(points.items()) for name, points in curve.items()
    }
    note(run, place, ways, rates)


def made(run: script.Script, place: Place) -> dict[str, Way]:
    """All ways that there are; of the others the run is told why not."""
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


def compare(ways: dict[str, Way], threads: int, effort: Effort) -> dict[str, list[float]]:
    """Updates a second of each way, in each round."""
    length = SLICE if effort.repeat is None else 0.05 * effort.repeat
    rounds = effort.rounds or max(3, round(effort.seconds / (length * len(ways))))
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        rate(way, threads, length / 4)  # statements are prepared
    for number in range(rounds):
        names = list(ways)
        names = names[number % len(names) :] + names[: number % len(names)]
        for name in names:
            rates[name].append(rate(ways[name], threads, length))
    return rates


def rate(way: Way, threads: int, seconds: float) -> float:
    """Updates a second, all threads together."""
    start = threading.Barrier(threads + 1)
    counts, errors = [0] * threads, list[BaseException]()
    over = threading.Event()

    def work(number: int) -> None:
        try:
            way.update(1)  # has its connection
        except BaseException as error:  # noqa: BLE001  # raised below, in the main thread
            errors.append(error)
        start.wait()
        try:
            while not over.is_set() and not errors:
                way.update(1)
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

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
    if errors:
        raise errors[0]
    return max(sum(counts), 1) / took


def note(
    run: script.Script, place: Place, ways: dict[str, Way], rates: dict[str, list[float]]
) -> None:
    title = f"{run.findings.servers[place.name]}, {THREADS} threads, {LATENCY * 1000:g} ms each way"
    table = run.table(title, "way", "updates a second", "x ORM by hand", "x driver alone")
    for name, way in ways.items():
        row = [way.name, f"{statistics.median(rates[name]):.0f}"]
        for other in ("orm", "raw"):
            pairs = zip(rates[name], rates[other], strict=True)
            figure = interval([one / base for one, base in pairs])
            run.findings.note(f"{place.name}.{name}.to_{other}", figure)
            row.append(str(figure))
        table.add_row(*row)
    run.show(table)


if __name__ == "__main__":
    main()
