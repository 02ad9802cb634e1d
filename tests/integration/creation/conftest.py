"""The sessions, actors, tables and rows of tests/integration/locking; no test expects a key above 2."""

from __future__ import annotations

from tests.integration.locking.conftest import (
    documents,
    elsewhere,
    engine,
    keepers,
    make_engine,
    other,
    pytest_configure,
    read_committed,
    session,
    session_factory,
)

__all__ = [
    "documents",
    "elsewhere",
    "engine",
    "keepers",
    "make_engine",
    "other",
    "pytest_configure",
    "read_committed",
    "session",
    "session_factory",
]
