"""The scene of the cycles, and measures that must not grow from cycle to cycle."""

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
# The scene of the cycles: the stress fixture's documents, and sessions that lock them.

DOCUMENTS = 5
"""Documents 0 to 4 are there, each with five details; a test puts them there with ``fill()``."""

STATES = {ident: dict.fromkeys(NAMES, ident) for ident in range(DOCUMENTS)}

#: Commits skip the disk, and deadlocks end early. sqlite3 keeps 128 statements per connection, and
#: the same statement with a different number counts as another.
CONNECT_ARGS: dict[str, dict[str, Any]] = {
    "postgresql": {"options": "-c synchronous_commit=off -c deadlock_timeout=10ms"},
    "sqlite": {"cached_statements": 8},
}


def new_engine(database: Database, **options: Any) -> sa.Engine:
    """Make a private engine, for as many commits per second as possible."""
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

    :ivar compiled: the engine's statement cache, without an upper limit.
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
        """The connection that all cycles share."""
        return self.engine.connect()

    @cached_property
    def session(self) -> LockingSession:
        """The session that all cycles share."""
        return self.sessions()

    def close(self) -> None:
        """Release the objects that cycles share."""
        self.session.close()
        self.connection.close()

    @property
    def ident(self) -> int:
        """The next document in each cycle."""
        return self.number % DOCUMENTS

    @property
    def seconds(self) -> float:
        """A different waiting time in each cycle."""
        return 10 + self.number / 1000

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the document in another session."""
        with self.sessions() as holder:
            holder.get_one_entity(Document, self.ident, LockOptions.ForUpdate)
            yield


Way = Callable[[Scene], None]
"""One cycle: locks and lets go, or fails; what is kept of it after that is a leak."""


# --------------------------------------------------------------------------------------------------
# Measures of a program that must not grow, cycle after cycle.

# --------------------------------------------------------------------------------------------------
# The numbers of sessions and locks, as the database reports them.

_POSTGRESQL = sa.text("""
    SELECT count(*), count(locks), coalesce(sum(locks), 0)
    FROM pg_stat_activity LEFT JOIN (
        SELECT pid, count(*) AS locks FROM pg_locks GROUP BY pid) AS held USING (pid)
    WHERE datname = current_database() AND application_name <> 'who looks'""")


def left_at_the_server(database: Database) -> Mapping[str, int]:
    """Count all sessions and locks; no other program is at work."""
    return _look_at_file(database) if database.name == "sqlite" else _ask_postgresql(database)


def _ask_postgresql(database: Database) -> Mapping[str, int]:
    with database.observer().connect() as connection:
        # An earlier observer may still be there: a session takes time to end.
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
            return True  # another connection writes
        # Copies everything back and restarts the log, which is impossible while a reader needs old pages.
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)


def _times_open(path: Path) -> int:
    files = Path("/proc/self/fd")
    if not files.exists():
        return 0
    targets = []
    for file in files.iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this listing itself
            targets.append(file.readlink())
    return targets.count(path)


# --------------------------------------------------------------------------------------------------
# Current measures of a program: numbers that must not grow.
#
# The memory it measures, and why:
#
# - *gc objects* by type, after a collection: exact, whatever used the memory before. It
#   finds one object per cycle, and names its type.
# - *blocks*, ``sys.getallocatedblocks()``: also exact, and it sees what the collector
#   misses: numbers, strings, bytes. It costs nothing, while tracemalloc makes a cycle three times
#   slower.
# - *kB*, the process's private resident pages: the only measure that sees memory allocated
#   in C, by libpq, SQLite or the allocator itself. It moves in steps, and pages freed earlier
#   hide small ones, so its limit is the documented one: 2 MB, for any number of cycles.

Footprint = Counter[str]

#: sqlite3 and aiosqlite keep a weak reference to each cursor, and release them 200 at a time.
_REFERENCES = "object ReferenceType"

#: The allowed growth after any number of cycles: a list that temporarily grew, an integer that is
#: no longer small.
ROOM = {
    "object": 10,
    "blocks": 1000,
    "kB of memory": 2048,
    _REFERENCES: 1000,
    "in sa_doclock.dialects.named_locks._keys": 1000,  # the last keys only
    "object LockLimit": 16,  # the last ones: the rest of a limit differs each time
    # A long-lived session keeps the states of a few freed objects.
    **dict.fromkeys(("object InstanceState", "object set"), 30),
    **dict.fromkeys(("object dict", "object tuple"), 60),
}

_FILES, _MEMORY = Path("/proc/self/fd"), Path("/proc/self/statm")


def footprint(scene: Scene) -> Footprint:
    found = Footprint(left_at_the_server(scene.database))
    gc.collect()
    found["connections checked out"] = scene.engine.pool.checkedout()  # type: ignore[attr-defined]
    found["compiled statements"] = len(scene.compiled)
    found["threads"] = threading.active_count()
    # Not public; lists every listener until it is removed or its target is gone.
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
    """Return the measures that grew beyond their room, and by how much."""
    more = {name: after[name] - before[name] for name in after}
    return {name: number for name, number in more.items() if number > _room(name)}


def _room(name: str) -> int:
    return ROOM.get(name, ROOM["object"] if name.startswith("object ") else 0)


def _kept_by_modules() -> Iterator[tuple[str, int]]:
    """Yield the sizes of the module-level state of the library."""
    for module in _MODULES:
        for name, value in vars(module).items():
            if isinstance(value, _CACHE):
                if value.cache_info().maxsize is None:  # a bounded cache stops growing
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
# Runs each way a number of times, and reports what grew.

#: Cycles of a way before measuring: they fill caches and pools.
WARM_UP = 6

#: Measures that fall late: a server's session, a driver's thread.
_LATE = {"sessions", "sessions with locks", "locks", "threads", "open files"}
_PATIENCE = 10.0


def run_all(scene: Scene, soak: Soak, row: Row, ways: Sequence[Way], cycles: int) -> None:
    """Run this number of cycles, spread evenly over all ways.

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
    """Run one way this many times; return the growth since the start."""
    repeat(scene, way, WARM_UP)
    before = footprint(scene)
    repeat(scene, way, cycles)
    return grown_since(scene, before)


def grown_since(scene: Scene, before: Footprint) -> dict[str, int]:
    """Return the growth, once nothing more is expected to end."""
    end = time.monotonic() + _PATIENCE
    while (found := growth(before, footprint(scene))).keys() & _LATE and time.monotonic() < end:
        time.sleep(0.05)
    return found


def repeat(scene: Scene, way: Way, cycles: int) -> None:
    """Run one way this many times."""
    for _ in range(cycles):
        way(scene)
        scene.number += 1
