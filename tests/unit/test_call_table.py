"""No operation makes more calls of Python functions than the table in ``tests/unit/calls`` says.

Calls, not time, so that it says the same on every machine.  What is meant to cost more is written
into the table by ``python -m tests.unit.call_table``.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.call_table import OPERATIONS, SENT, TABLE, VERSION, Counts, counts_of

GROWTH = 1.02


@pytest.fixture(scope="module")
def counted() -> Counts:
    """Count in a process of its own: other tests declare documents and listen to events."""
    command = [sys.executable, "-m", "tests.unit.call_table", "--print"]
    return counts_of(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def known() -> Counts:
    if not TABLE.exists():
        pytest.skip(f"there is no table for {VERSION}")
    return counts_of(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_makes_more_calls(counted: Counts, known: Counts, operation: str) -> None:
    now, before = counted[operation], known[operation]
    assert now[SENT] <= before[SENT]
    came = "\n".join(f"{more:+} {name}" for name, more in (now - before).most_common())
    assert now.total() <= before.total() * GROWTH, f"{before.total()} -> {now.total()}\n{came}"
