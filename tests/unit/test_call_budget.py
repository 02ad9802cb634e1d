"""The number of calls of our own functions on the way of a lock, warm, on SQLite.

A call costs time, and a reader has to follow it.  The test counts calls, not time, so that it says
the same on every machine; it prints them when it fails.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.unit.call_counts import INDENT, calls_of


@pytest.fixture(scope="module")
def counted() -> dict[str, list[str]]:
    """Count in a process in which no document is declared."""
    command = [sys.executable, "-m", "tests.unit.call_counts"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, list[str]] = json.loads(run.stdout)
    return found


def files(calls: list[str]) -> set[str]:
    return {call.strip().partition(":")[0] for call in calls}


def depth(calls: list[str]) -> int:
    return max((len(call) - len(call.lstrip())) // len(INDENT) + 1 for call in calls)


def test_making_a_session(counted: dict[str, list[str]]) -> None:
    assert len(counted["make"]) <= 5, "\n".join(counted["make"])


def test_a_lock_by_key(counted: dict[str, list[str]]) -> None:
    calls = counted["lock"]
    assert len(calls) <= 35, "\n".join(calls)
    assert len(files(calls)) <= 10, "\n".join(calls)
    assert depth(calls) <= 6, "\n".join(calls)


def test_save_changes(counted: dict[str, list[str]]) -> None:
    assert len(counted["save"]) <= 25, "\n".join(counted["save"])


def test_what_is_counted(counted: dict[str, list[str]]) -> None:
    assert calls_of(lambda: sorted([2, 1])) == []  # Python's own
    assert counted["lock"][0].endswith("lock_methods.py:get_entity")
    assert any(call.endswith("sqlite.py:begin") for call in counted["lock"])
