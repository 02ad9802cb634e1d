"""Measure contention for documents, with 1000 asyncio tasks and a pool of 20.

``contended``: 1000 tasks, each updates one of five documents; how many a second, over AsyncSession by hand.
``tasks``: 1000 tasks, each updates one of ten documents.  ``unrelated``: one task holds a hot
document, 19 more want it, and another task asks for a document that nobody uses: how long until
it has it.  ``second session``: 100 tasks, each of which holds a lock and asks for another
document in a second session.  All of it with a DocumentGate and without.

    python -m benchmarks.async_gate [--databases postgresql] [--json FILE]
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.interfaces import ORMOption

from benchmarks.lab import script
from benchmarks.lab.figures import Absent, Figure
from benchmarks.lab.models import DeclaredDoc, Doc, clean, fill, totals_are_right
from benchmarks.lab.pairing import interval
from benchmarks.lab.places import Place
from benchmarks.ways.doclock import document_gate, session_factory
from benchmarks.ways.orm import change
from sa_doclock import AsyncLockingSession, DocLockError, LockOptions

POOL = 20
TASKS, QUICK_TASKS = 1000, 100
HOLDERS = 100  # each with a second session
HOT, UNRELATED = 1, 2
HELD = 0.3  # seconds for which the hot document is held
ROUNDS = 7
CONTENDED = 5  # documents
POOL_TIMEOUT = 30.0
SHORT_POOL_TIMEOUT = 3.0

# By figure name: the measured way, and the way it is compared with.
PAIRS = {"entity": "by_hand", "declared": "by_hand", "document": "by_hand_eager"}

Operation = Callable[[int], Coroutine[Any, Any, None]]


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql",), measure)


def measure(run: script.Script, place: Place) -> None:
    fill(place.engine(), documents=2 * HOLDERS)
    asyncio.run(measure_all(run, place))
    wrong = 0 if totals_are_right(place.engine()) else 1
    run.findings.note(f"{place.name}.wrong_documents", Figure(wrong))
    clean(place.engine())


async def measure_all(run: script.Script, place: Place) -> None:
    title = f"{run.findings.servers[place.name]}, asyncio, a pool of {POOL}"
    table = run.table(title, "", "tasks: seconds", "errors", "unrelated: ms", "second session")
    await measure_by_hand(run, place, table)
    await measure_contended(run, place)
    for name in ("no_gate", "gate"):
        try:
            options = {"gate": document_gate()} if name == "gate" else {}
            session_factory(place.engine(), **options)  # raises if there is no gate=
        except Absent as absent:
            run.lacks(f"{place.name}.{name}", absent)
            continue
        await measure_sessions(run, place, table, name, options)
    run.show(table)


async def measure_by_hand(run: script.Script, place: Place, table: Any) -> None:
    engine = new_engine(place)
    seconds, errors = await many(by_hand(engine, selectinload(Doc.details)), tasks(run))
    run.findings.note(f"{place.name}.by_hand.tasks.errors", Figure(errors.total()))
    table.add_row("ORM by hand", f"{seconds:.2f}", told(errors), "", "")
    await engine.dispose()


def by_hand(engine: AsyncEngine, *options: ORMOption) -> Operation:
    sessions = async_sessionmaker(engine)

    async def update(number: int) -> None:
        async with sessions() as session:
            doc = await session.get(
                Doc, number, with_for_update=True, populate_existing=True, options=options
            )
            await session.run_sync(lambda _: change(doc))
            await session.commit()

    return update


async def measure_contended(run: script.Script, place: Place) -> None:
    """Compare the updates a second of all tasks; each round measures each way."""
    engine = new_engine(place)
    sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
    ways = {
        "by_hand": by_hand(engine),
        "by_hand_eager": by_hand(engine, selectinload(Doc.details)),
        "entity": updating(sessions, Doc, whole=False),
        "declared": updating(sessions, DeclaredDoc, whole=False),
        "document": updating(sessions, DeclaredDoc),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    order, names = random.Random(0), list(ways)
    for _ in range(1 if run.tiny or run.quick else ROUNDS):
        order.shuffle(names)
        for name in names:
            gc.collect()  # garbage of the previous way
            seconds, errors = await many(ways[name], tasks(run), CONTENDED)
            assert not errors, errors
            rates[name].append(tasks(run) / seconds)
    await engine.dispose()
    title = f"{run.findings.servers[place.name]}, asyncio, {CONTENDED} documents, a pool of {POOL}"
    table = run.table(title, "way", "updates a second", "/ by hand")
    for name, other in PAIRS.items():
        pairs = zip(rates[name], rates[other], strict=True)
        figure = interval([one / by_hand for one, by_hand in pairs])
        run.findings.note(f"{place.name}.contended.{name}", figure)
        table.add_row(name, f"{statistics.median(rates[name]):.0f}", str(figure))
    run.show(table)


async def measure_sessions(
    run: script.Script,
    place: Place,
    table: Any,
    name: str,
    options: dict[str, Any],
) -> None:
    engine = new_engine(place)
    sessions = async_sessionmaker(engine, class_=AsyncLockingSession, **options)
    seconds, errors = await many(updating(sessions), tasks(run))
    waits = [await unrelated(sessions) for _ in range(1 if run.tiny or run.quick else 5)]
    await engine.dispose()
    engine = new_engine(place, SHORT_POOL_TIMEOUT)
    sessions = async_sessionmaker(engine, class_=AsyncLockingSession, **options)
    second = await second_sessions(sessions, 5 if run.tiny else HOLDERS)
    await engine.dispose()
    group = f"{place.name}.{name}"
    notes = {
        "tasks.errors": errors.total(),
        "unrelated.milliseconds": statistics.median(waits) * 1000,
        "second_session.pool_timeouts": second[sa.exc.TimeoutError.__name__],
        "second_session.named_errors": second["named"],
    }
    for what, value in notes.items():
        run.findings.note(f"{group}.{what}", Figure(value))
    del second["named"]
    wait = f"{notes['unrelated.milliseconds']:.1f}"
    table.add_row(name.replace("_", " "), f"{seconds:.2f}", told(errors), wait, told(second))


def new_engine(place: Place, timeout: float = POOL_TIMEOUT) -> AsyncEngine:
    return create_async_engine(place.url, pool_size=POOL, max_overflow=0, pool_timeout=timeout)


def tasks(run: script.Script) -> int:
    if run.tiny:
        return 2 * POOL
    return QUICK_TASKS if run.quick else TASKS


def updating(
    sessions: async_sessionmaker[AsyncLockingSession],
    entity: type[Any] = DeclaredDoc,
    *,
    whole: bool = True,
) -> Operation:
    async def update(number: int) -> None:
        async with sessions() as session:
            read = session.get_document if whole else session.get_entity
            doc = await read(entity, number, LockOptions.ForUpdate)
            await session.run_sync(lambda _: change(doc))
            await session.save_changes()

    return update


async def many(update: Operation, number: int, documents: int = 10) -> tuple[float, Counter[str]]:
    """Run this many tasks at once on these documents; return the seconds, and the errors by name."""
    began = time.perf_counter()
    outcomes = await asyncio.gather(
        *(update(task % documents + 1) for task in range(number)), return_exceptions=True
    )
    seconds = time.perf_counter() - began
    return seconds, Counter(type(one).__name__ for one in outcomes if one is not None)


async def unrelated(sessions: async_sessionmaker[AsyncLockingSession]) -> float:
    """Return the seconds until another document is locked, while 19 tasks wait for the hot one."""
    held = asyncio.Event()

    async def hold() -> None:
        async with sessions() as session:
            await session.get_entity(DeclaredDoc, HOT, LockOptions.ForUpdate)
            held.set()
            await asyncio.sleep(HELD)

    update = updating(sessions)
    holder = asyncio.create_task(hold())
    await held.wait()
    waiters = [asyncio.create_task(update(HOT)) for _ in range(POOL - 1)]
    await asyncio.sleep(HELD / 2)  # by now all of them have requested it
    began = time.perf_counter()
    async with sessions() as session:
        assert await session.get_entity(DeclaredDoc, UNRELATED, LockOptions.ForUpdate)
        waited = time.perf_counter() - began
    await asyncio.gather(holder, *waiters)
    return waited


async def second_sessions(
    sessions: async_sessionmaker[AsyncLockingSession], number: int
) -> Counter[str]:
    """Return the results of tasks that lock a free document in a second session."""

    async def task(first: int) -> None:
        async with sessions() as session:
            await session.get_entity(DeclaredDoc, first, LockOptions.ForUpdate)
            await asyncio.sleep(0.05)
            async with sessions() as second:
                await _touch(second, first + number)

    results = await asyncio.gather(*(task(n + 1) for n in range(number)), return_exceptions=True)
    counted = Counter(type(one).__name__ if one else "fine" for one in results)
    counted["named"] = sum(isinstance(one, DocLockError) for one in results)
    return counted


async def _touch(session: AsyncSession, number: int) -> None:
    assert isinstance(session, AsyncLockingSession)
    await session.get_entity(DeclaredDoc, number, LockOptions.ForUpdate)


def told(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.most_common() if count) or "0"


if __name__ == "__main__":
    main()
