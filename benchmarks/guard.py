"""Measure what the guard adds to a flush of 1,000 changed parts of one document.

The document is locked and loaded; then all its details are changed, and written by one flush.  Declared
by @document, with the guard, against the same class undeclared, in a LockingSession both times.

    python -m benchmarks.guard [--databases sqlite,postgresql] [--json FILE]
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.models import DeclaredDoc, Doc, clean, fill, numbers
from benchmarks.lab.pairing import interval
from benchmarks.lab.places import Place
from sa_doclock import LockingSession, LockOptions

DATABASES = ("sqlite", "postgresql")
PARTS, TINY_PARTS = 1000, 10
ROUNDS, QUICK_ROUNDS = 15, 3
CLASSES: dict[str, type[Any]] = {"plain": Doc, "declared": DeclaredDoc}


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(DATABASES, measure)


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    parts = TINY_PARTS if run.tiny else PARTS
    fill(engine, details=parts)
    for entity in CLASSES.values():
        flushed(engine, entity)
    rounds = 1 if run.tiny else QUICK_ROUNDS if run.quick else ROUNDS
    found = [
        {name: flushed(engine, entity) for name, entity in CLASSES.items()} for _ in range(rounds)
    ]
    ratio = interval([one["declared"] / one["plain"] for one in found])
    run.findings.note(f"{place.name}.flush.cpu", ratio)
    title = f"{run.findings.servers[place.name]}, a flush of {parts} changed parts"
    table = run.table(title, "declared / undeclared, CPU")
    table.add_row(str(ratio))
    run.show(table)
    clean(engine)


def flushed(engine: sa.Engine, entity: type[Any]) -> float:
    """Return the CPU seconds of the flush alone."""
    with LockingSession(engine) as session:
        doc: Any = session.get_document(entity, 1, LockOptions.ForUpdate)
        for detail in doc.details:
            detail.value = next(numbers)
        doc.total = sum(detail.value for detail in doc.details)
        gc.collect()
        before = time.process_time()
        session.flush()
        spent = time.process_time() - before
        session.commit()
    return spent


if __name__ == "__main__":
    main()
