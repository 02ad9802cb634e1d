"""Measure what it costs to make a session and to close it, and the memory that one takes.

``LockingSession(engine)`` against ``Session(engine)``: nothing is read and nothing is locked.  Memory
is what tracemalloc counts for each of many sessions that are open at once.

    python -m benchmarks.sessions [--databases sqlite] [--json FILE]
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.pairing import compare, ratio
from benchmarks.lab.places import Place
from sa_doclock import LockingSession

SECONDS = 3.0
AT_ONCE, TINY_AT_ONCE = 100, 3  # sessions in one measurement
CLASSES: dict[str, type[Session]] = {"plain": Session, "locking": LockingSession}


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("sqlite",), measure)


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    many = TINY_AT_ONCE if run.tiny else AT_ONCE
    ways = {name: opened_and_closed(kind, engine, many) for name, kind in CLASSES.items()}
    cpu = ratio(compare(ways, run.effort(SECONDS)), "locking", "plain", "cpu")
    size = {name: bytes_of(kind, engine, many) for name, kind in CLASSES.items()}
    more = Figure((size["locking"] - size["plain"]) / 1000)
    run.findings.note(f"{place.name}.cpu", cpu)
    run.findings.note(f"{place.name}.memory", more)
    table = run.table("LockingSession(engine) / Session(engine)", "CPU", "kB more")
    table.add_row(str(cpu), f"{more.value:.2f}")
    run.show(table)


def opened_and_closed(kind: type[Session], engine: sa.Engine, many: int) -> Callable[[], None]:
    def way() -> None:
        for _ in range(many):
            kind(engine).close()

    return way


def bytes_of(kind: type[Session], engine: sa.Engine, many: int) -> float:
    """Return the bytes of one unused session."""
    kind(engine).close()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [kind(engine) for _ in range(many)]
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    for session in kept:
        session.close()
    return (after - before) / many


if __name__ == "__main__":
    main()
