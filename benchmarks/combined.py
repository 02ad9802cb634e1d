"""Measure gate.run() on one hot document, against locked() and the ORM by hand.

Every caller changes a detail of the same document.  The parts, each of which can be run by itself:

- far: 32 threads over a TCP proxy that adds 1 ms each way;
- near: the same without latency, where the flush of each commit to the disk can be saved (give a
  server that has fsync on);
- callers: by number of callers over the proxy, and one caller alone; the picture is made of these;
- raised, refused: with functions that raise after a change, with flushes that fail, by their share;
- tasks: 32 tasks of asyncio over the proxy;
- trips: as raised and refused, with 25 ms each way, so that the ratios are those of the round trips
  and a busy machine does not matter; it is run only if it is named.

    python -m benchmarks.combined [--databases postgresql,mysql,mariadb] [--only PARTS] [--json FILE]
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
from benchmarks.lab.threads import Rates, compare, rate
from benchmarks.ways import Way, doclock
from benchmarks.ways.orm import BY_HAND, change, orm
from sa_doclock import AsyncLockingSession

LATENCY = 0.001  # each way
THREADS = 32
CALLERS = (1, 2, 4, 8, 16, 32)
SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
SECONDS = 12.0
FAR_AWAY, TRIPS_SECONDS = 0.025, 12.0
TRIP_SHARES = (0.0, 0.03, 0.1, 0.3, 1.0)
SLICE, QUICK_SLICE = 1.0, 0.4  # seconds to measure one way at a time
BY_RUN, BY_RUN_PIPELINED, BY_BLOCK = "gate.run", "gate.run, pipeline", "locked_document"

Fail = Callable[[Any], object]


class Failed(InvalidRequestError):
    """A function failed, after a change."""


def raise_after_change(_doc: Any) -> None:
    raise Failed


def break_flush(doc: Any) -> None:
    doc.details[1].value = 2**40  # too large for the column


FAILURES: Mapping[str, Fail] = {"raised": raise_after_change, "refused": break_flush}


def combined(
    engine: sa.Engine,
    name: str = BY_RUN,
    fails: Callable[[], Fail | None] = lambda: None,
    **options: bool,
) -> Way:
    """Return gate.run() as a way to update; it has no load."""
    sessions = doclock.session_factory(engine, **options)
    gate = doclock.document_gate()

    def update(number: int) -> None:
        fail = fails()  # for this call, however often its function runs

        def function(_session: Any, doc: Any) -> None:
            change(doc)
            if fail is not None:
                fail(doc)

        gate.run(sessions, DeclaredDoc, number, function)

    return Way(name, update, update)


def by_hand(engine: sa.Engine, fails: Callable[[], Fail | None]) -> Way:
    """Return the ORM by hand as a way to update, with failures."""
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
    """Return locked_document() as a way to update."""
    sessions = doclock.session_factory(engine)

    def update(number: int) -> None:
        with sessions() as session, session.locked_document(DeclaredDoc, number) as doc:
            change(doc)

    return Way(BY_BLOCK, update, update)


def main(arguments: Sequence[str] | None = None) -> None:
    with script.run(__file__, __doc__ or "", arguments, tuple(PARTS)) as run:
        run.on_each(("postgresql", "mysql", "mariadb"), measure)


def measure(run: script.Script, place: Place) -> None:
    fill(place.engine())
    for name, part in PARTS.items():
        if run.wants(name) and (name != "trips" or run.options.only):
            part(run, place)
    run.findings.note(f"{place.name}.wrong_documents", Figure(not totals_are_right(place.engine())))
    clean(place.engine())


def _engine(place: Place, latency: float) -> sa.Engine:
    place.proxy.delay(latency)
    url = place.far_url if latency else place.url
    return place.engine(url, pool_size=THREADS, max_overflow=THREADS)


def _near(run: script.Script, place: Place) -> None:
    _compare(run, place, "near", made(place, _engine(place, 0)))


def _far(run: script.Script, place: Place) -> None:
    _compare(run, place, "far", made(place, _engine(place, LATENCY)))


def _failing(kind: str, run: script.Script, place: Place) -> None:
    engine = _engine(place, LATENCY)
    for share in SHARES if place.name == "postgresql" else (0.03, 0.1):
        _fail(run, place, engine, f"{kind}_{share:g}", partial(_sometimes, FAILURES[kind], share))


def _trips(run: script.Script, place: Place) -> None:
    """Measure by share of failures, with round trips so long that nothing else matters."""
    engine, seconds = _engine(place, FAR_AWAY), run.options.seconds or TRIPS_SECONDS
    table = run.table(
        f"{place.name}, {FAR_AWAY * 1000:g} ms each way",
        "fails",
        "by hand",
        "gate.run",
        "x by hand",
    )
    for kind, fail in FAILURES.items():
        for share in TRIP_SHARES:
            ways = [
                by_hand(engine, _sometimes(fail, share)),
                combined(engine, fails=_sometimes(fail, share)),
            ]
            answered = [way._replace(update=_answered(way.update)) for way in ways]
            hand, gate = (rate(way, THREADS, lambda _: 1, seconds)[0] for way in answered)
            run.findings.note(f"{place.name}.trips.{kind}_{share:g}", Figure(gate / hand))
            name = f"{kind} {share:.0%}"
            table.add_row(name, f"{hand:.1f}", f"{gate:.1f}", f"{gate / hand:.2f}")
    run.show(table)


def _of_tasks(run: script.Script, place: Place) -> None:
    place.proxy.delay(LATENCY)
    asyncio.run(_tasks(run, place))


async def _tasks(run: script.Script, place: Place) -> None:
    """Measure the same with tasks, by hand and by gate.async_run()."""
    driver = {"postgresql": "postgresql+psycopg"}.get(place.name, "mysql+aiomysql")
    query = place.far_url.query if place.name == "postgresql" else {}  # for another driver
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


def _curve(run: script.Script, place: Place) -> None:
    """Measure by number of callers; compare one alone with the block."""
    ways = made(place, _engine(place, LATENCY))
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
    """Measure the answers a second, including errors, by hand and by gate.run()."""
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


PARTS: Mapping[str, Callable[[script.Script, Place], None]] = {
    "near": _near,
    "far": _far,
    "callers": _curve,
    "raised": partial(_failing, "raised"),
    "refused": partial(_failing, "refused"),
    "tasks": _of_tasks,
    "trips": _trips,
}


if __name__ == "__main__":
    main()
