"""The calls of our own functions on the way of a lock, warm: how many, in how many files, how deep.

They are ceilings for who reads the code, and the same on every machine.  A failure prints the calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.integration.locking.call_counts import INDENT, calls_of
from tests.support.databases import Database


class Budget(NamedTuple):
    calls: int
    files: int
    depth: int


BUDGETS = {
    "sqlite": {
        "make": Budget(27, 16, 5),
        "lock": Budget(50, 15, 10),
        "save": Budget(46, 15, 8),
    },
    "postgresql": {
        "declared lock": Budget(50, 16, 10),
        "declared lock_in_time": Budget(110, 23, 17),
        "declared lock_by_scalars": Budget(107, 22, 13),
        "declared save": Budget(100, 24, 9),
    },
}


@pytest.mark.databases(*BUDGETS)
def test_the_way_of_a_lock_keeps_its_budgets(database: Database) -> None:
    budgets = BUDGETS.get(database.column)
    if budgets is None:
        pytest.skip("counted on other columns")
    url = [database.url] if database.name == "postgresql" else []
    command = [sys.executable, "-m", "tests.integration.locking.call_counts", *url]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    counted: dict[str, list[str]] = json.loads(run.stdout)
    over = {way: counted[way] for way in budgets if _exceeds(_count(counted[way]), budgets[way])}
    assert not over, _calls_of_each(over)


def _count(calls: list[str]) -> Budget:
    files = {call.strip().partition(":")[0] for call in calls}
    depth = max((len(call) - len(call.lstrip())) // len(INDENT) + 1 for call in calls)
    return Budget(len(calls), len(files), depth)


def _exceeds(counted: Budget, budget: Budget) -> bool:
    return any(number > most for number, most in zip(counted, budget, strict=True))


def _calls_of_each(over: dict[str, list[str]]) -> str:
    return "\n\n".join(
        "\n".join([f"{way}: {_count(calls)}", *calls]) for way, calls in over.items()
    )


def test_what_is_counted() -> None:
    assert calls_of(lambda: sorted([2, 1])) == []  # Python's own
    assert _count(["a.py:one", f"{INDENT}b.py:two", f"{INDENT}a.py:three"]) == (3, 2, 2)
