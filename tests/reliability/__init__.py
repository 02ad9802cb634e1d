"""A table of what was injected and survived: any test adds a row, pytest prints the table.

A test asks for the fixture ``reliability`` and counts in its own row; for the fixture
``soak``, which says how long it may take; and bears the mark ``soak`` if ``make soak`` runs it.
"""

from __future__ import annotations

from tests.reliability.record import Reliability, Row, Soak

__all__ = ["Reliability", "Row", "Soak"]
