"""Compare locked rows with the fetch of two job queues: how many jobs a second four processes do.

Each process fetches jobs until there are none, and notes of each that it is done; a job has the same
text everywhere.  They promise different things, as the table says: claim_each() and a locked set hold
row locks while the jobs are done, the queues mark a job, in a transaction before and one after it.  All
processes of claim_each() read the same candidates, so that each also tries the rows of the others.

    python -m benchmarks.queues [--databases postgresql] [--json FILE]
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from typing import Protocol

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Absent, Figure
from benchmarks.lab.places import Place
from benchmarks.ways.queue_workers import ClaimEach, NextRows, PgQueuer, Procrastinate, Wait

JOBS, QUICK_JOBS, TINY_JOBS = 1000, 400, 12
PROCESSES, TINY_PROCESSES = 4, 2
ROUNDS, QUICK_ROUNDS = 5, 1
BATCH = 20
SCHEMA = "sa_doclock_queues"
READY = 60.0  # seconds within which a process must start


class Worker(Protocol):
    """One way to empty a table of jobs."""

    @property
    def name(self) -> str: ...
    @property
    def promise(self) -> str: ...
    def fill(self, url: sa.URL, jobs: int) -> None: ...
    def work(self, url: sa.URL, wait: Wait) -> int: ...


WAYS: dict[str, Worker] = {
    "claim": ClaimEach(1),
    "claim_batch": ClaimEach(BATCH),
    "next": NextRows(1),
    "next_batch": NextRows(BATCH),
    "procrastinate": Procrastinate(),
    "pgqueuer": PgQueuer(1),
    "pgqueuer_batch": PgQueuer(BATCH),
}
LIBRARIES = ("procrastinate", "pgqueuer")
AGAINST = {
    "claim": ("procrastinate", "pgqueuer"),
    "next": ("procrastinate", "pgqueuer"),
    "claim_batch": ("procrastinate", "pgqueuer_batch"),
    "next_batch": ("procrastinate", "pgqueuer_batch"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql",), measure)


def measure(run: script.Script, place: Place) -> None:
    jobs = TINY_JOBS if run.tiny else QUICK_JOBS if run.quick else JOBS
    rounds = 1 if run.tiny else QUICK_ROUNDS if run.quick else ROUNDS
    processes = TINY_PROCESSES if run.tiny else PROCESSES
    ways = {name: way for name, way in WAYS.items() if is_there(run, place, name)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            rates[name].append(rate(way, place, jobs, processes))
    title = f"{run.findings.servers[place.name]}, {jobs} jobs, {processes} processes"
    table = run.table(title, "way", "jobs a second", "what it promises")
    for name, way in ways.items():
        run.findings.note(f"{place.name}.{name}.rate", spread(rates[name]))
        table.add_row(way.name, f"{statistics.median(rates[name]):.0f}", way.promise)
    run.show(table)
    ratios = run.table("jobs a second, claim_each / a job queue", "way", "queue", "ratio")
    for name, others in AGAINST.items():
        for other in (one for one in others if one in ways):
            ratio = spread([a / b for a, b in zip(rates[name], rates[other], strict=True)])
            run.findings.note(f"{place.name}.{name}.to_{other}", ratio)
            ratios.add_row(WAYS[name].name, WAYS[other].name, str(ratio))
    run.show(ratios)


def is_there(run: script.Script, place: Place, name: str) -> bool:
    """Return whether this way's library is installed; if not, report it to the run."""
    library = name.removesuffix("_batch")
    if library not in LIBRARIES or importlib.util.find_spec(library) is not None:
        return True
    absent = Absent(f"{library} is not installed: pip install --group bench")
    for ours in AGAINST:
        run.lacks(f"{place.name}.{ours}.to_{name}", absent)
    return False


def rate(way: Worker, place: Place, jobs: int, processes: int) -> float:
    """Return the jobs a second that some processes complete, from the first job to the last."""
    url = place.url.update_query_dict({"options": f"-csearch_path={SCHEMA}"})
    schema = place.engine()
    with schema.begin() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
    try:
        way.fill(url, jobs)
        with schema.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(processes)
        results: multiprocessing.SimpleQueue[tuple[int, float, float]] = context.SimpleQueue()
        started = [
            context.Process(target=work, args=(way, url, barrier, results))
            for _ in range(processes)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode for process in started):
            raise RuntimeError(f"a process of {way.name} has failed")
        found = [results.get() for _ in started]
    finally:
        with schema.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    done = sum(one for one, _, _ in found)
    if done != jobs:
        raise RuntimeError(f"{way.name} has done {done} jobs of {jobs}")
    return done / (max(end for _, _, end in found) - min(begin for _, begin, _ in found))


def work(
    way: Worker,
    url: sa.URL,
    barrier: Barrier,
    results: multiprocessing.SimpleQueue[tuple[int, float, float]],
) -> None:
    """Run in a separate process; ``monotonic`` is the same clock in all processes."""
    began = 0.0

    def wait() -> None:
        nonlocal began
        barrier.wait(READY)
        began = time.monotonic()

    done = way.work(url, wait)
    results.put((done, began, time.monotonic()))


def spread(values: Sequence[float]) -> Figure:
    ordered = sorted(values)
    return Figure(statistics.median(ordered), ordered[0], ordered[-1])


if __name__ == "__main__":
    main()
