"""Measures of a program that must not grow, cycle after cycle."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pkgutil
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import sqlalchemy as sa
from sqlalchemy.event import registry

import sa_doclock
from tests.reliability import Row, Soak
from tests.reliability.leaks.scene import Scene, Way
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# The numbers of sessions and of locks, from the database itself.

_POSTGRESQL = sa.text("""
    SELECT count(*), count(locks), coalesce(sum(locks), 0)
    FROM pg_stat_activity LEFT JOIN (
        SELECT pid, count(*) AS locks FROM pg_locks GROUP BY pid) AS held USING (pid)
    WHERE datname = current_database() AND application_name <> 'who looks'""")


def left_at_the_server(database: Database) -> Mapping[str, int]:
    """Count the sessions and locks of everybody; nobody else is at work."""
    return _look_at_file(database) if database.name == "sqlite" else _ask_postgresql(database)


def _ask_postgresql(database: Database) -> Mapping[str, int]:
    with database.observer().connect() as connection:
        # Who has looked before may be there still: a session ends in its own time.
        connection.exec_driver_sql("SET application_name = 'who looks'")
        row = connection.execute(_POSTGRESQL).one()
    return dict(zip(("sessions", "sessions with locks", "locks"), map(int, row), strict=True))


def _look_at_file(database: Database) -> Mapping[str, int]:
    path = Path(sa.make_url(database.url).database or "")
    return {"locks": int(_is_locked(path)), "sessions": _times_open(path)}


def _is_locked(path: Path) -> bool:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    with contextlib.closing(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        try:
            connection.execute(f"PRAGMA user_version = {version}")
        except sqlite3.OperationalError:
            return True  # somebody writes
        # Copies everything back, and begins the log anew: what nobody can who has a reader behind.
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)


def _times_open(path: Path) -> int:
    files = Path("/proc/self/fd")
    if not files.exists():
        return 0
    targets = []
    for file in files.iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            targets.append(file.readlink())
    return targets.count(path)


# --------------------------------------------------------------------------------------------------
# Measures of a program at this moment: numbers that must not grow.
#
# Which memory is measured, and why:
#
# - *gc objects* by type, after a collection: exact, whoever else has used the memory before. It
#   finds one object per cycle, and says what it is.
# - *blocks*, ``sys.getallocatedblocks()``: exact as well, and also sees what the collector does
#   not know: numbers, texts, bytes. It costs nothing, where tracemalloc makes a cycle three times
#   slower.
# - *kB*, the resident pages that are the process's alone: the only one that sees what is allocated
#   in C, by libpq, SQLite or the allocator itself. It moves in steps, and pages that were freed
#   before hide small ones, so it has the room that is promised: 2 MB, for any number of cycles.

Footprint = Counter[str]

#: sqlite3 and aiosqlite keep a weak reference to each cursor, and let them go 200 at a time.
_REFERENCES = "object ReferenceType"

#: What may be more after any number of cycles: a list that was made longer for the time being,
#: an integer that is no small one any more.
ROOM = {
    "object": 10,
    "blocks": 1000,
    "kB of memory": 2048,
    _REFERENCES: 1000,
    "in sa_doclock.dialects.named_locks._keys": 1000,  # the last ones, and no more
    "object LockLimit": 16,  # the last ones: what is left of a limit is another one each time
    # A session that goes on keeps the states of a few objects that were freed.
    **dict.fromkeys(("object InstanceState", "object set"), 30),
    **dict.fromkeys(("object dict", "object tuple"), 60),
}

_FILES, _MEMORY = Path("/proc/self/fd"), Path("/proc/self/statm")


def footprint(scene: Scene) -> Footprint:
    """Measure everything."""
    found = Footprint(left_at_the_server(scene.database))
    gc.collect()
    found["connections checked out"] = scene.engine.pool.checkedout()  # type: ignore[attr-defined]
    found["compiled statements"] = len(scene.compiled)
    found["threads"] = threading.active_count()
    # Not public, and where every listener is listed until it is removed or its target is gone.
    found["listeners"] = len(registry._key_to_collection)
    found.update({f"in {name}": size for name, size in _kept_by_modules()})
    if _FILES.exists():  # Linux
        found["open files"] = len(list(_FILES.iterdir()))
    if _MEMORY.exists():
        _, resident, shared, *_ = map(int, _MEMORY.read_text("ascii").split())
        found["kB of memory"] = (resident - shared) * os.sysconf("SC_PAGE_SIZE") // 1024
    found["blocks"] = sys.getallocatedblocks()
    found.update(Counter(f"object {type(one).__qualname__}" for one in gc.get_objects()))
    found["blocks"] -= found[_REFERENCES]
    return found


def growth(before: Footprint, after: Footprint) -> dict[str, int]:
    """Return the measures that have grown, and by how much, beyond the room that they have."""
    more = {name: after[name] - before[name] for name in after}
    return {name: number for name, number in more.items() if number > _room(name)}


def _room(name: str) -> int:
    return ROOM.get(name, ROOM["object"] if name.startswith("object ") else 0)


def _kept_by_modules() -> Iterator[tuple[str, int]]:
    """The sizes of what the modules of the library keep for the whole program."""
    for module in _MODULES:
        for name, value in vars(module).items():
            if isinstance(value, _CACHE):
                if value.cache_info().maxsize is None:  # with a bound it does not grow for ever
                    yield f"{module.__name__}.{name}", value.cache_info().currsize
            elif isinstance(value, _KEEPS) and not name.startswith("__"):
                yield f"{module.__name__}.{name}", len(value)


_CACHE = type(functools.lru_cache(len))
_KEEPS = (dict, list, set, WeakKeyDictionary, WeakSet, WeakValueDictionary)
_MODULES = [
    import_module(found.name)
    for found in pkgutil.walk_packages(sa_doclock.__path__, "sa_doclock.")
    if not found.name.startswith(("sa_doclock.tools.cli", "sa_doclock.alembic"))
]


# --------------------------------------------------------------------------------------------------
# Runs each way so many times, and tells what has grown.

#: Cycles of a way before it is measured: caches are filled, pools have their connections.
WARM_UP = 6

#: What ends in its own time after it was asked to: a server's session, a driver's thread.
_LATE = {"sessions", "sessions with locks", "locks", "threads", "open files"}
_PATIENCE = 10.0


def run_all(scene: Scene, soak: Soak, row: Row, ways: Sequence[Way], cycles: int) -> None:
    """Run so many cycles, each way as often as the others.

    :raises AssertionError: something grows, from the first cycle to the last of one way or of
        them all.
    """
    for way in ways:
        repeat(scene, way, WARM_UP)
    start = footprint(scene)
    each = -(-cycles // len(ways))
    for way in ways:
        leaked = leak_of(scene, way, each)
        assert not leaked, f"{each} cycles of {way.__name__} have left {leaked}"
        row.injected += each
        soak.progress(
            f"{scene.database.column}: {row.injected:,} cycles, {way.__name__} leaves nothing"
        )
    leaked = grown_since(scene, start)
    assert not leaked, f"{row.injected} cycles have left {leaked}"
    more = footprint(scene)["kB of memory"] - start["kB of memory"]
    row.note = f"memory {more:+,} kB; objects, connections, locks +0"


def leak_of(scene: Scene, way: Way, cycles: int) -> dict[str, int]:
    """Run one way so many times; tell what has grown since the start."""
    repeat(scene, way, WARM_UP)
    before = footprint(scene)
    repeat(scene, way, cycles)
    return grown_since(scene, before)


def grown_since(scene: Scene, before: Footprint) -> dict[str, int]:
    """Tell what has grown, once nothing can be expected to end any more."""
    end = time.monotonic() + _PATIENCE
    while (found := growth(before, footprint(scene))).keys() & _LATE and time.monotonic() < end:
        time.sleep(0.05)
    return found


def repeat(scene: Scene, way: Way, cycles: int) -> None:
    """Run one way so many times."""
    for _ in range(cycles):
        way(scene)
        scene.number += 1
