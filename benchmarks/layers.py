"""Measure the cost of each layer for the same locked update, also with a server 1 ms away.

The driver alone, SQLAlchemy Core, its ORM by hand, Django, peewee and sa_doclock do the same:
an update locks the header, reads five details, changes one, totals again and commits; a load
takes a shared lock, reads and ends the transaction.

``RT`` are the round trips of one operation on a connection that is in its pool already, and
``held`` those between the grant of the lock and its release: on a hot document, throughput is
one over that.  ``CPU`` is the client's, as a multiple of the driver's alone; ``at 1 ms`` is the
wall time over a TCP proxy that adds 1 ms each way, as a multiple of the ORM's by hand.

    python -m benchmarks.layers [--databases postgresql,mysql,mariadb] [--json FILE] [--plot DIR]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from benchmarks.lab import script
from benchmarks.lab.figures import Absent, Figure
from benchmarks.lab.models import clean, fill
from benchmarks.lab.pairing import Rounds, compare, ratio
from benchmarks.lab.places import SERVERS, Place
from benchmarks.lab.proxy import Proxy, Recording
from benchmarks.ways import Way, doclock, raw
from benchmarks.ways.core import core
from benchmarks.ways.django_orm import django
from benchmarks.ways.orm import orm, orm_eager, orm_timed
from benchmarks.ways.peewee_orm import peewee

NEAR_SECONDS, FAR_SECONDS = 4.0, 6.0
LATENCY = 0.001  # each way
OPERATIONS = ("update", "load")

Maker = Callable[[Place, sa.URL], Way]


def _engine(place: Place, url: sa.URL, **options: Any) -> sa.Engine:
    # Size 1: the measured connection is the warmed-up one.
    return place.engine(url, pool_size=1, max_overflow=0, **options)


def _on_engine(make: Callable[[sa.Engine], Way]) -> Maker:
    return lambda place, url: make(_engine(place, url))


def _default(place: Place, url: sa.URL) -> Way:
    return doclock.doclock(_engine(place, url, **_default_level(place)), doclock.DEFAULT)


def _default_clean(place: Place, url: sa.URL) -> Way:
    options = doclock.spare_rollbacks(place.engine())
    engine = _engine(place, url, **options, **_default_level(place))
    return doclock.doclock(engine, doclock.DEFAULT_CLEAN)


def _default_level(place: Place) -> dict[str, Any]:
    """:raises Absent: READ COMMITTED is already the server's default."""
    if place.name not in ("mysql", "mariadb"):
        raise Absent("its default isolation level is READ COMMITTED")
    return {"isolation_level": None}  # the server's default


def _clean(place: Place, url: sa.URL) -> Way:
    options = doclock.spare_rollbacks(place.engine())
    return doclock.doclock(_engine(place, url, **options), doclock.CLEAN)


# By figure name.
MAKERS: dict[str, Maker] = {
    "raw": lambda place, url: raw.raw(place.name, url),
    "raw_pipelined": lambda place, url: raw.pipelined(place.name, url),
    "core": _on_engine(core),
    "orm": _on_engine(orm),
    "orm_eager": _on_engine(orm_eager),
    "orm_timed": _on_engine(orm_timed),
    "django": lambda place, url: django(place.name, url),
    "peewee": lambda place, url: peewee(place.name, url),
    "entity": _on_engine(doclock.doclock),
    "timed": _on_engine(doclock.timed),
    "document": _on_engine(doclock.whole),
    "pipeline": _on_engine(doclock.pipelined),
    "pipeline_document": _on_engine(doclock.pipelined_whole),
    "clean": _clean,
    "default": _default,
    "default_clean": _default_clean,
}


class Trips(NamedTuple):
    """Round trips of one operation."""

    total: int
    held: int


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(SERVERS, measure)


def measure(run: script.Script, place: Place) -> None:
    fill(place.engine())
    near, far = made(run, place, place.url), made(None, place, place.far_url)
    try:
        trips = {name: trips_of(place.proxy, way) for name, way in far.items()}
        cpu = {
            operation: compare(_calls(near, operation), run.effort(NEAR_SECONDS))
            for operation in OPERATIONS
        }
        place.proxy.delay(LATENCY)
        wall = {
            operation: compare(_calls(far, operation), run.effort(FAR_SECONDS))
            for operation in OPERATIONS
        }
        record_time_lines(run, place, far)
    finally:
        place.proxy.delay(0)
        for way in (*near.values(), *far.values()):
            way.close()
    note(run, place, near, trips, cpu, wall)
    clean(place.engine())


def made(run: script.Script | None, place: Place, url: sa.URL) -> dict[str, Way]:
    """Return all available ways; report to the run why the others are missing."""
    found = ((name, _made(run, place, name, url)) for name in MAKERS)
    return {name: way for name, way in found if way is not None}


def _made(run: script.Script | None, place: Place, name: str, url: sa.URL) -> Way | None:
    try:
        return MAKERS[name](place, url)
    except Absent as absent:
        if run is not None:
            run.lacks(f"{place.name}.{name}", absent)
        return None


def _calls(ways: dict[str, Way], operation: str) -> dict[str, Callable[[], object]]:
    return {name: partial(getattr(way, operation), 1) for name, way in ways.items()}


def trips_of(proxy: Proxy, way: Way) -> dict[str, Trips]:
    found = {}
    for operation in OPERATIONS:
        recording = recorded(proxy, way, operation)
        found[operation] = Trips(recording.round_trips, recording.held)
    return found


def recorded(proxy: Proxy, way: Way, operation: str) -> Recording:
    """Return the traffic of one operation on an open connection."""
    call = getattr(way, operation)
    call(1)
    with proxy.recording() as recordings:
        call(1)
    return recordings[0]


def record_time_lines(run: script.Script, place: Place, ways: dict[str, Way]) -> None:
    """For the picture, keep one update's traffic over the slow wire."""
    lines = {}
    for name in ("orm", "entity", "document", "pipeline", "pipeline_document", "clean"):
        if name in ways:
            lines[ways[name].name] = recorded(place.proxy, ways[name], "update").chunks
    run.findings.series[f"{place.name}.time_lines"] = lines


def note(
    run: script.Script,
    place: Place,
    ways: dict[str, Way],
    trips: dict[str, dict[str, Trips]],
    cpu: dict[str, Rounds],
    wall: dict[str, Rounds],
) -> None:
    notes = run.findings
    columns = [f"{operation} {what}" for operation in OPERATIONS for what in _WHAT]
    table = run.table(notes.servers[place.name], "layer", *columns)
    for name, way in ways.items():
        row = [way.name]
        for operation in OPERATIONS:
            found = trips[name][operation]
            x_raw = ratio(cpu[operation], name, "raw", "cpu")
            x_orm = ratio(wall[operation], name, "orm", "wall")
            prefix = f"{place.name}.{name}.{operation}"
            notes.note(f"{prefix}.round_trips", Figure(found.total))
            notes.note(f"{prefix}.held", Figure(found.held))
            notes.note(f"{prefix}.cpu_to_raw", x_raw)
            notes.note(f"{prefix}.cpu_to_orm", ratio(cpu[operation], name, "orm", "cpu"))
            notes.note(
                f"{prefix}.cpu_to_orm_eager", ratio(cpu[operation], name, "orm_eager", "cpu")
            )
            notes.note(f"{prefix}.far_to_orm", x_orm)
            row += [str(found.total), str(found.held), f"{x_raw.value:.2f}", f"{x_orm.value:.3f}"]
        table.add_row(*row)
    for operation in OPERATIONS:
        prefix = f"{place.name}.timed.{operation}"
        more = trips["timed"][operation].total - trips["entity"][operation].total
        notes.note(f"{prefix}.more_round_trips", Figure(more))
        if "orm_timed" in ways:
            by_hand = ratio(cpu[operation], "timed", "orm_timed", "cpu")
            notes.note(f"{prefix}.cpu_to_orm_timed", by_hand)
    run.show(table)


_WHAT = ("RT", "held", "CPU", "1 ms")


if __name__ == "__main__":
    main()
