"""A pytest plugin: runs each test on one database, with each of its other parameters; databases take turns.

``python -m pytest -p lab.running.take_turns``, as in ``.ci/run``.  The tests of a file take turns in the order
of their names; the file's name determines the first database.  So each run selects the same tests.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict

import pytest

DATABASES = ("database", "served")
"""The parameters that name a real database, or a database of tests/sql."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one of the items that differ only in their database."""
    alike: defaultdict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        alike[_without_database(item)].append(item)
    turns, kept = Counter[str](), set[pytest.Item]()
    for some in alike.values():
        file = some[0].nodeid.partition("::")[0]
        # The journal, if nothing else differs
        others = [item for item in some if "sqlite-journal" not in item.nodeid] or some
        kept.add(others[(zlib.crc32(file.encode()) + turns[file]) % len(others)])
        turns[file] += len(some) > 1
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _without_database(item: pytest.Item) -> tuple[str, ...]:
    """Return the names that identify the item, without its database."""
    callspec = getattr(item, "callspec", None)
    found = callspec and next(filter(callspec.params.get, DATABASES), None)
    if callspec is None or found is None:
        return (item.nodeid,)
    others = callspec.id.replace(str(callspec.params[found]), "", 1)
    return item.nodeid.partition("[")[0], others
