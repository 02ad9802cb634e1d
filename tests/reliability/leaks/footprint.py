"""The scene of the cycles, and measures that must not grow, cycle after cycle."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import sqlalchemy as sa
from sqlalchemy.event import registry
from sqlalchemy.orm import sessionmaker

import sa_doclock
from sa_doclock import LockingSession, LockOptions
from sa_doclock.tools.cli.workload.tables import NAMES, Document
from tests.reliability import Row, Soak
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# The scene of the cycles: the documents of the stress fixture, and sessions that lock them.

DOCUMENTS = 5
"""Documents 0 to 4 are there, each with five details; a test puts them there with ``fill()``."""

STATES = {ident: dict.fromkeys(NAMES, ident) for ident in range(DOCUMENTS)}

#: A commit need not wait for the disk, nor a deadlock for its second; and sqlite3 keeps 128
#: statements of each connection, of which one with another number in it is another one.
CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "postgresql": {"options": "-c synchronous_commit=off -c deadlock_timeout=10ms"},
    "sqlite": {"cached_statements": 8},
}


def new_engine(database: Database, **options: Any) -> sa.Engine:
    """Make an engine that nobody else knows of, for as many commits as a second can hold."""
    connect_args = {**CONNECT_ARGS.get(database.name, {}), **options.pop("connect_args", {})}
    engine = sa.create_engine(database.url, connect_args=connect_args, **options)
    if database.name == "sqlite":
        sa.event.listen(engine, "connect", _need_not_reach_the_disk)
    return engine


def _need_not_reach_the_disk(dbapi_connection: Any, _record: object) -> None:
    dbapi_connection.execute("PRAGMA synchronous = OFF")


@dataclass
class Scene:
    """The objects that a cycle works with.

    :ivar compiled: the cache of the engine's statements, one without an upper limit.
    :ivar number: of the cycle, from 0.
    """

    database: Database
    engine: sa.Engine
    compiled: dict[Any, Any]
    number: int = 0

    def __post_init__(self) -> None:
        self.sessions = sessionmaker(self.engine, class_=LockingSession)

    @cached_property
    def connection(self) -> sa.Connection:
        """One for all cycles that ask for it."""
        return self.engine.connect()

    @cached_property
    def session(self) -> LockingSession:
        """One for all cycles that ask for it."""
        return self.sessions()

    def close(self) -> None:
        """Let go of what goes on from cycle to cycle."""
        self.session.close()
        self.connection.close()

    @property
    def ident(self) -> int:
        """A document, each time the next one."""
        return self.number % DOCUMENTS

    @property
    def seconds(self) -> float:
        """A time to wait, each time another one."""
        return 10 + self.number / 1000

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let another session hold the document."""
        with self.sessions() as holder:
            holder.get_one_entity(Document, self.ident, LockOptions.ForUpdate)
            yield


Way = Callable[[Scene], None]
"""One cycle: locks and lets go, or fails; what is kept of it after that is a leak."""


# --------------------------------------------------------------------------------------------------
# Measures of a program that must not grow, cycle after cycle.

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
