"""A table of injected and survived faults: any test adds a row, pytest prints the table.

A test requests the fixture ``reliability`` and counts in its own row. The fixture ``soak`` sets how
long it may take. The mark ``soak`` includes the test in ``make soak``.
"""

from __future__ import annotations

from tests.reliability.record import Reliability, Row, Soak

__all__ = ["Reliability", "Row", "Soak"]
