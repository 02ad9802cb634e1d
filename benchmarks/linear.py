"""Measure one session that locks thousands of documents, one after another and all at once.

A lock should cost the same however many the session holds.  ``late / early`` compares the last
sixth of the locks with the first, less the time of Python's garbage collector: a full collection
looks at all objects, and falls into the one or the other by chance, by hand too.  ``/ by hand``
compares the whole with ``Session.get(with_for_update=True, populate_existing=True)`` and a lazy
load.  CPU time, in one process, in turn.

    python -m benchmarks.linear [--databases sqlite,postgresql] [--json FILE]
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import DeclaredDoc, Doc, clean, fill
from benchmarks.lab.places import Place
from benchmarks.ways.orm import change, total_of
from sa_doclock import LockingSession, LockOptions, claim_each

DATABASES = ("sqlite", "postgresql")
DOCUMENTS, QUICK_DOCUMENTS, TINY_DOCUMENTS = 3000, 600, 12
ROUNDS, QUICK_ROUNDS = 3, 3
ForUpdate = LockOptions.ForUpdate

One = Callable[[Any, int], Any]
All = Callable[[Any, int], Any]


class Way(NamedTuple):
    """One way to lock documents, one after another or all at once.

    :ivar one: locks one of them.
    :ivar commits: the way changes the document, and commits all of them at the end.
    :ivar all: locks all documents at once, instead of ``one``.
    """

    session: type[Session]
    one: One | None = None
    commits: bool = False
    all: All | None = None


def by_hand(session: Session, number: int) -> Any:
    doc = session.get(Doc, number, with_for_update=True, populate_existing=True)
    total_of(doc)
    return doc


def changed_by_hand(session: Session, number: int) -> Any:
    with session.no_autoflush:
        doc = by_hand(session, number)
    change(doc)
    return doc


def entity(session: LockingSession, number: int) -> Any:
    doc = session.get_entity(Doc, number, ForUpdate)
    total_of(doc)
    return doc


def declared(session: LockingSession, number: int) -> Any:
    doc = session.get_entity(DeclaredDoc, number, ForUpdate)
    total_of(doc)
    return doc


def document(session: LockingSession, number: int) -> Any:
    doc = session.get_document(DeclaredDoc, number, ForUpdate)
    total_of(doc)
    return doc


def changed(session: LockingSession, number: int) -> Any:
    doc = session.get_document(DeclaredDoc, number, ForUpdate)
    change(doc)
    return doc


def set_by_hand(session: Session, many: int) -> Any:
    found = session.scalars(sa.select(Doc).order_by(Doc.id).with_for_update()).all()
    assert len(found) == many
    return found, [total_of(doc) for doc in found]


def entities(session: LockingSession, many: int) -> Any:
    found = session.get_entities(Doc, range(1, many + 1), ForUpdate)
    return found, [total_of(doc) for doc in found]


def entity_set(session: LockingSession, many: int) -> Any:
    found = session.scalars(session.entity_set(Doc, ForUpdate).order_by(Doc.id)).all()
    assert len(found) == many
    return found, [total_of(doc) for doc in found]


WAYS = {
    "by_hand": Way(Session, by_hand),
    "entity": Way(LockingSession, entity),
    "declared": Way(LockingSession, declared),
    "document": Way(LockingSession, document),
    "changed_by_hand": Way(Session, changed_by_hand, commits=True),
    "changed": Way(LockingSession, changed, commits=True),
    "set_by_hand": Way(Session, all=set_by_hand),
    "entities": Way(LockingSession, all=entities),
    "entity_set": Way(LockingSession, all=entity_set),
}
AGAINST = {
    "entity": "by_hand",
    "declared": "by_hand",
    "document": "by_hand",
    "changed": "changed_by_hand",
    "entities": "set_by_hand",
    "entity_set": "set_by_hand",
}


class Spent(NamedTuple):
    """CPU seconds of all locks; and the last sixth's seconds divided by the first sixth's."""

    total: float
    late: float


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(DATABASES, measure)


def measure(run: script.Script, place: Place) -> None:
    many = TINY_DOCUMENTS if run.tiny else QUICK_DOCUMENTS if run.quick else DOCUMENTS
    rounds = 1 if run.tiny else QUICK_ROUNDS if run.quick else ROUNDS
    engine = place.engine()
    fill(engine, many)
    found: dict[str, list[Spent]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            found[name].append(spent(engine, way, many))
    title = f"{run.findings.servers[place.name]}, {many} documents in one session"
    table = run.table(title, "way / by hand", "CPU", "late / early")
    for name, against in AGAINST.items():
        pairs = zip(found[name], found[against], strict=True)
        ratio = figure(one.total / other.total for one, other in pairs)
        run.findings.note(f"{place.name}.{name}.cpu", ratio)
        row = ""
        if WAYS[name].one is not None:
            late = figure(one.late for one in found[name])
            run.findings.note(f"{place.name}.{name}.late", late)
            row = str(late)
        table.add_row(name, str(ratio), row)
    late = figure(claimed_late(engine, many) for _ in range(rounds))
    run.findings.note(f"{place.name}.claim.late", late)
    table.add_row("claim_each", "", str(late))
    run.show(table)
    clean(engine)


@contextmanager
def clock_without_collector() -> Iterator[Callable[[], float]]:
    """Yield a clock of CPU seconds that stops during garbage collection."""
    started = collected = 0.0

    def on_collection(phase: str, _: object) -> None:
        nonlocal started, collected
        if phase == "start":
            started = time.process_time()
        else:
            collected += time.process_time() - started

    gc.callbacks.append(on_collection)
    try:
        yield lambda: time.process_time() - collected
    finally:
        gc.callbacks.remove(on_collection)


def spent(engine: sa.Engine, way: Way, many: int) -> Spent:
    """Lock the documents one after another, and keep them."""
    kept, start = [], time.process_time()
    with way.session(engine) as session, clock_without_collector() as clock:
        moments = [clock()]
        if engine.dialect.name == "sqlite" and way.session is Session:
            session.connection().exec_driver_sql("BEGIN IMMEDIATE")
        if way.all is not None:
            kept.append(way.all(session, many))
            moments.append(clock())
        if way.one is not None:
            for number in range(1, many + 1):
                kept.append(way.one(session, number))
                moments.append(clock())
        if way.commits:
            session.commit()
        total = time.process_time() - start
    del kept
    gc.collect()
    return Spent(total, late_to_early(moments) if way.one is not None else 1)


def claimed_late(engine: sa.Engine, many: int) -> float:
    """Claim all documents in one loop; return the CPU time of the last sixth divided by the first's."""
    claims = claim_each(
        sessionmaker(engine, class_=LockingSession), sa.select(Doc).order_by(Doc.id)
    )
    with clock_without_collector() as clock:
        moments = [clock()]
        for claim in claims:
            with claim as doc:
                change(doc)
            moments.append(clock())
    assert len(moments) == many + 1
    return late_to_early(moments)


def late_to_early(moments: Sequence[float]) -> float:
    sixth = max(len(moments) // 6, 1)
    return (moments[-1] - moments[-1 - sixth]) / (moments[sixth] - moments[0])


def figure(values: Iterable[float]) -> Figure:
    ordered = sorted(values)
    return Figure(statistics.median(ordered), ordered[0], ordered[-1])


if __name__ == "__main__":
    main()
