"""Measures of a program at this moment: numbers that must not grow.

Which memory is measured, and why:

- *gc objects* by type, after a collection: exact, whoever else has used the memory before. It
  finds one object per cycle, and says what it is.
- *blocks*, ``sys.getallocatedblocks()``: exact as well, and also sees what the collector does
  not know: numbers, texts, bytes. It costs nothing, where tracemalloc makes a cycle three times
  slower.
- *kB*, the resident pages that are the process's alone: the only one that sees what is allocated
  in C, by libpq, SQLite or the allocator itself. It moves in steps, and pages that were freed
  before hide small ones, so it has the room that is promised: 2 MB, for any number of cycles.
"""

from __future__ import annotations

import functools
import gc
import os
import pkgutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from sqlalchemy.event import registry

import sa_doclock
from tests.reliability.leaks.scene import Scene
from tests.reliability.leaks.servers import left_at_the_server

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
