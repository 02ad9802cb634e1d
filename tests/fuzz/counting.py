"""How many inputs were fuzzed in this process, for the summary; and how many there shall be."""

from __future__ import annotations

import os
from collections import Counter

TIMES = int(os.environ.get("SA_DOCLOCK_FUZZ_TIMES", "1"))
"""How many times as many examples a long run tries."""

_inputs: Counter[str] = Counter()


def count(database: str) -> None:
    """One more question was put to a session on this database."""
    _inputs[database] += 1


def inputs_fuzzed() -> int:
    """All questions so far."""
    return _inputs.total()
