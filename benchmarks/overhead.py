"""Measure the cost of sa_doclock over the same lock written by hand with SQLAlchemy's ORM.

An update locks the header, reads five details, changes one, totals again and commits; a load
takes a shared lock, reads and releases.  ``get_entity`` with a lazy load is set against
``Session.get(with_for_update=True, populate_existing=True)`` with a lazy load, for a class
that is declared by @document and one that is not; ``get_document`` against the same by hand
with ``selectinload()`` and with a lazy load.  The floor is a right lock in a few lines, without
all that the library knows besides.

    python -m benchmarks.overhead [--seconds 4] [--databases sqlite,postgresql] [--json FILE]

An SQLite file is always measured; a server where its URL is in SA_DOCLOCK_TEST_POSTGRESQL_URL,
SA_DOCLOCK_TEST_MYSQL_URL or SA_DOCLOCK_TEST_MARIADB_URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import clean, fill
from benchmarks.lab.pairing import Rounds, compare, ratio
from benchmarks.lab.places import NAMES, Place
from benchmarks.ways import Way
from benchmarks.ways.doclock import DECLARED, ENTITY, WHOLE, declared, doclock, whole
from benchmarks.ways.floor import FLOOR, FLOOR_WHOLE, floor, floor_whole
from benchmarks.ways.orm import BY_HAND, BY_HAND_EAGER, orm, orm_eager

SECONDS = 6.0
OPERATIONS = ("update", "load")
CLOCKS = ("cpu", "wall")

# By figure name: the measured way, and the way it is compared with.
PAIRS = {
    "entity": (ENTITY, BY_HAND),
    "declared": (DECLARED, BY_HAND),
    "document": (WHOLE, BY_HAND_EAGER),
    "document_lazy": (WHOLE, BY_HAND),
    "floor": (FLOOR, BY_HAND),
    "floor_whole": (FLOOR_WHOLE, BY_HAND),
}
OURS = ("entity", "declared", "document")


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(NAMES, measure)
        for name in (f"{operation}.{clock}" for operation in OPERATIONS for clock in CLOCKS):
            figures = run.findings.figures.items()
            names = tuple(f".{pair}.{name}" for pair in OURS)
            ours = [figure for full, figure in figures if full.endswith(names)]
            if ours:
                run.findings.note(f"worst.{name}", max(ours))


def measure(run: script.Script, place: Place) -> None:
    engine = place.engine()
    fill(engine)
    table = run.table(run.findings.servers[place.name], "way / by hand", *_columns())
    both = {}
    for operation in OPERATIONS:
        calls = {way.name: partial(getattr(way, operation), 1) for way in ways(engine)}
        both[operation] = compare(calls, run.effort(SECONDS))
    for pair, names in PAIRS.items():
        figures = figures_of(pair, both)
        for name, figure in figures.items():
            run.findings.note(f"{place.name}.{pair}.{name}", figure)
        table.add_row(" / ".join(names), *map(str, figures.values()))
    run.show(table)
    clean(engine)


def _columns() -> list[str]:
    return [f"{operation}, {clock}" for operation in OPERATIONS for clock in CLOCKS]


def ways(engine: sa.Engine) -> list[Way]:
    by_hand = [orm(engine), orm_eager(engine), floor(engine), floor_whole(engine)]
    return [*by_hand, doclock(engine), declared(engine), whole(engine)]


def figures_of(pair: str, both: dict[str, Rounds]) -> dict[str, Figure]:
    way, by_hand = PAIRS[pair]
    return {
        f"{operation}.{clock}": ratio(rounds, way, by_hand, clock)
        for operation, rounds in both.items()
        for clock in CLOCKS
    }


if __name__ == "__main__":
    main()
