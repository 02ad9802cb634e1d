"""Everything that is wrong with a history."""

from __future__ import annotations

from tests.reliability.history.anomalies import Anomaly
from tests.reliability.history.cycles import found_in_cycles
from tests.reliability.history.reads import found_in_reads
from tests.reliability.history.record import History
from tests.reliability.history.writes import found_in_writes


def check(history: History) -> list[Anomaly]:
    """Return the anomalies; of cycles, the first of each kind in each tangle of transactions."""
    return [*found_in_reads(history), *found_in_writes(history), *found_in_cycles(history)]
