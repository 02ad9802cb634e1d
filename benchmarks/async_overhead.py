"""Measure the cost of AsyncLockingSession over the same lock written by hand with AsyncSession.

The same operations as in overhead.py, on an event loop that does nothing else: an update locks the
header, reads five details, changes one, totals again and commits; a load takes a shared lock, reads
and releases.  By hand the details come by ``selectinload()``, or by a lazy
load in ``run_sync()``.

    python -m benchmarks.async_overhead [--databases postgresql] [--json FILE]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from typing import Any

from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.interfaces import ORMOption

from benchmarks.lab import script
from benchmarks.lab.models import DeclaredDoc, Doc, clean, fill
from benchmarks.lab.pairing import compare, ratio
from benchmarks.lab.places import Place
from benchmarks.ways.orm import change, total_of
from sa_doclock import AsyncLockingSession, LockOptions

SECONDS = 5.0
DRIVERS = ("psycopg", "asyncpg")
OPERATIONS = ("update", "load")
# By figure name: the measured way, and the way it is compared with.
PAIRS = {
    "entity": ("entity", "by_hand"),
    "declared": ("declared", "by_hand"),
    "document": ("document", "by_hand_eager"),
}

Operation = Callable[[], Coroutine[Any, Any, object]]


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql",), measure)


def measure(run: script.Script, place: Place) -> None:
    fill(place.engine())
    for driver in DRIVERS:
        title = f"{run.findings.servers[place.name]}, {driver}, way / by hand, CPU"
        table = run.table(title, "way", *OPERATIONS)
        with closing(asyncio.new_event_loop()) as loop:
            engine = create_async_engine(place.url.set(drivername=f"postgresql+{driver}"))
            rounds = {
                operation: compare(
                    {name: _blocking(loop, way) for name, way in ways(engine, operation).items()},
                    run.effort(SECONDS),
                )
                for operation in OPERATIONS
            }
            loop.run_until_complete(engine.dispose())
        for name, (way, by_hand) in PAIRS.items():
            figures = [ratio(rounds[one], way, by_hand, "cpu") for one in OPERATIONS]
            for operation, figure in zip(OPERATIONS, figures, strict=True):
                run.findings.note(f"{place.name}.{driver}.{name}.{operation}.cpu", figure)
            table.add_row(name, *map(str, figures))
        run.show(table)
    clean(place.engine())


def _blocking(loop: asyncio.AbstractEventLoop, way: Operation) -> Callable[[], object]:
    return lambda: loop.run_until_complete(way())


def ways(engine: AsyncEngine, operation: str) -> dict[str, Operation]:
    updates = operation == "update"
    lazy: Sequence[ORMOption] = ()
    eager = (selectinload(Doc.details),)
    return {
        "by_hand": by_hand(engine, updates, lazy),
        "by_hand_eager": by_hand(engine, updates, eager),
        "entity": ours(engine, updates, Doc, whole=False),
        "declared": ours(engine, updates, DeclaredDoc, whole=False),
        "document": ours(engine, updates, DeclaredDoc, whole=True),
    }


def by_hand(engine: AsyncEngine, updates: bool, options: Sequence[ORMOption]) -> Operation:
    sessions = async_sessionmaker(engine, class_=AsyncSession)
    lock: Any = True if updates else {"read": True}

    async def way() -> None:
        async with sessions() as session:
            doc = await session.get(
                Doc, 1, with_for_update=lock, populate_existing=True, options=options
            )
            if updates:
                await session.run_sync(lambda _: change(doc))
                await session.commit()
            else:
                await session.run_sync(lambda _: total_of(doc))
                await session.rollback()

    return way


def ours(engine: AsyncEngine, updates: bool, entity: type[Any], *, whole: bool) -> Operation:
    sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
    lock = LockOptions.ForUpdate if updates else LockOptions.SharedRead

    async def way() -> None:
        async with sessions() as session:
            read = session.get_document if whole else session.get_entity
            doc = await read(entity, 1, lock)
            if updates:
                await session.run_sync(lambda _: change(doc))
                await session.save_changes()
            else:
                await session.run_sync(lambda _: total_of(doc))
                await session.release_locks()

    return way


if __name__ == "__main__":
    main()
