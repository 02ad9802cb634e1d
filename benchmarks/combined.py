"""Measure gate.run() on one hot document, against locked() and the ORM by hand.

Every caller changes a detail of the same document: 32 threads over a TCP proxy that adds 1 ms each way,
then without latency, where the flush of each commit to the disk can be saved (give a server that has
fsync on).  Then, over the proxy: by number of callers; with functions that raise after a change, and
with flushes that fail, by their share; 32 tasks; and one caller alone.

    python -m benchmarks.combined [--databases postgresql,mysql,mariadb] [--json FILE]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import selectinload, sessionmaker

from benchmarks.lab import script
from benchmarks.lab.figures import Figure
from benchmarks.lab.models import DeclaredDoc, Doc, clean, fill, totals_are_right
from benchmarks.lab.pairing import interval
from benchmarks.lab.places import Place
from benchmarks.lab.threads import Rates, compare
from benchmarks.ways import Way, doclock
from benchmarks.ways.orm import BY_HAND, change, orm
from sa_doclock import AsyncLockingSession

LATENCY = 0.001  # each way
THREADS = 32
CALLERS = (1, 2, 4, 8, 16, 32)
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
SECONDS = 12.0
SLICE, QUICK_SLICE = 1.0, 0.4  # seconds that one way is measured at a time
BY_RUN, BY_RUN_PIPELINED, BY_BLOCK = "gate.run", "gate.run, pipeline", "locked_document"

Fail = Callable[[Any], object]


class Failed(InvalidRequestError):
    """A function has failed, after a change."""


def raise_after_change(_doc: Any) -> None:
    raise Failed


def break_flush(doc: Any) -> None:
    doc.details[1].value = 2**40  # too great for the column


FAILURES: Mapping[str, Fail] = {"raised": raise_after_change, "refused": break_flush}


def combined(
    engine: sa.Engine,
    name: str = BY_RUN,
    fails: Callable[[], Fail | None] = lambda: None,
    **options: bool,
) -> Way:
    """Return the way of gate.run(); it has no load."""
    sessions = doclock.session_factory(engine, **options)
    gate = doclock.document_gate()

    def update(number: int) -> None:
        fail = fails()  # of this call, however often its function runs

        def function(_session: Any, doc: Any) -> None:
            change(doc)
            if fail is not None:
                fail(doc)

        gate.run(sessions, DeclaredDoc, number, function)

    return Way(name, update, update)


def by_hand(engine: sa.Engine, fails: Callable[[], Fail | None]) -> Way:
    """Return the way of the ORM by hand, with failures."""
    sessions = sessionmaker(engine)

    def update(number: int) -> None:
        fail = fails()
        with sessions() as session:
            doc = session.get(Doc, number, with_for_update=True, populate_existing=True)
            change(doc)
            if fail is not None:
                fail(doc)
            session.commit()

    return Way(BY_HAND, update, update)


def by_block(engine: sa.Engine) -> Way:
    """Return the way of locked_document()."""
    sessions = doclock.session_factory(engine)

    def update(number: int) -> None:
        with sessions() as session, session.locked_document(DeclaredDoc, number) as doc:
            change(doc)

    return Way(BY_BLOCK, update, update)


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments) as run:
        run.on_each(("postgresql", "mysql", "mariadb"), measure)


def measure(run: script.Script, place: Place) -> None:
    fill(place.engine())
    for name, latency in (("near", 0.0), ("far", LATENCY)):
        place.proxy.delay(latency)
        url = place.far_url if latency else place.url
        engine = place.engine(url, pool_size=THREADS, max_overflow=THREADS)
        _compare(run, place, name, made(place, engine))
    _curve(run, place, engine)
    for kind, fail in FAILURES.items():
        for share in SHARES if place.name == "postgresql" else (0.03, 0.1):
            _fail(run, place, engine, f"{kind}_{share:g}", partial(_sometimes, fail, share))
    asyncio.run(_tasks(run, place))
    run.findings.note(f"{place.name}.wrong_documents", Figure(not totals_are_right(place.engine())))
    clean(place.engine())


async def _tasks(run: script.Script, place: Place) -> None:
    """Measure the same of tasks, by hand and by gate.async_run()."""
    driver = {"postgresql": "postgresql+psycopg"}.get(place.name, "mysql+aiomysql")
    query = place.far_url.query if place.name == "postgresql" else {}  # of another driver
    url = place.far_url.set(drivername=driver, query=query)
    engine = create_async_engine(url, pool_size=THREADS, isolation_level="READ COMMITTED")
    sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
    plain, gate = async_sessionmaker(engine), doclock.document_gate()

    async def function(_session: Any, doc: Any) -> None:
        change(doc)

    async def by_run() -> None:
        await gate.async_run(sessions, DeclaredDoc, 1, function)

    async def hand() -> None:
        async with plain() as session:
            details = (selectinload(Doc.details),)
            change(await session.get(Doc, 1, with_for_update=True, options=details))
            await session.commit()

    rates: dict[str, list[float]] = {"run": [], "hand": []}
    for _ in range(1 if run.tiny else 3 if run.quick else 6):
        rates["run"].append(await _rate_of_tasks(by_run, _length(run)))
        rates["hand"].append(await _rate_of_tasks(hand, _length(run)))
    ratio = interval([one / other for one, other in zip(*rates.values(), strict=True)])
    run.findings.note(f"{place.name}.tasks.run.to_orm", ratio)
    await engine.dispose()


async def _rate_of_tasks(update: Callable[[], Awaitable[None]], seconds: float) -> float:
    done, began = 0, time.perf_counter()

    async def work() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await update()
            done += 1

    await asyncio.gather(*(work() for _ in range(THREADS)))
    return done / (time.perf_counter() - began)


def _sometimes(fail: Fail, share: float) -> Callable[[], Fail | None]:
    chance = Random(1)
    return lambda: fail if chance.random() < share else None


def made(place: Place, engine: sa.Engine) -> dict[str, Way]:
    ways = {"orm": orm(engine), "block": by_block(engine), "run": combined(engine)}
    if place.name == "postgresql":
        ways["run_pipeline"] = combined(engine, BY_RUN_PIPELINED, pipeline=True)
    return ways


def _length(run: script.Script) -> float:
    return 0.05 if run.tiny else QUICK_SLICE if run.quick else SLICE


def _curve(run: script.Script, place: Place, engine: sa.Engine) -> None:
    """Measure by number of callers; one alone is compared with the block."""
    ways = made(place, engine)
    points: dict[str, list[tuple[int, float]]] = {way.name: [] for way in ways.values()}
    for callers in CALLERS[:1] if run.tiny else CALLERS:
        rates = compare(ways, callers, lambda _: 1, run.effort(SECONDS / 2), _length(run))
        for name, way in ways.items():
            points[way.name].append((callers, rates.median(name)))
        if callers == CALLERS[0]:
            run.findings.note(f"{place.name}.alone.to_block", rates.ratio("block", "run"))
    run.findings.series[f"{place.name}.curve"] = points


def _fail(
    run: script.Script,
    place: Place,
    engine: sa.Engine,
    name: str,
    sometimes: Callable[[], Callable[[], Fail | None]],
) -> None:
    """Measure the answers a second, errors included, by hand and by gate.run()."""
    ways = {
        "orm": by_hand(engine, sometimes()),
        "run": combined(engine, fails=sometimes()),
    }
    answered = {key: way._replace(update=_answered(way.update)) for key, way in ways.items()}
    threads = 2 if run.tiny else THREADS
    rates = compare(answered, threads, lambda _: 1, run.effort(SECONDS / 2), _length(run))
    run.findings.note(f"{place.name}.{name}.run.to_orm", rates.ratio("run", "orm"))


def _answered(update: Callable[[int], object]) -> Callable[[int], object]:
    def call(number: int) -> None:
        with suppress(SQLAlchemyError):
            update(number)

    return call


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
