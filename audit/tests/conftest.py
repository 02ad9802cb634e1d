"""An SQLite file with the rows from tests/support/models.py."""

from __future__ import annotations

from tests.unit.conftest import engine, filled

__all__ = ["engine", "filled"]
