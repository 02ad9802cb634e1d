"""Everything that is wrong with a history."""

from __future__ import annotations

from tests.history.anomalies import Anomaly
from tests.history.cycles import found_in_cycles
from tests.history.reads import found_in_reads
from tests.history.record import History
from tests.history.writes import found_in_writes


def check(history: History) -> list[Anomaly]:
    """Return the anomalies; of cycles, the first of each kind in each tangle of transactions."""
    return [*found_in_reads(history), *found_in_writes(history), *found_in_cycles(history)]
