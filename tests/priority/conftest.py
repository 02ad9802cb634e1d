"""The sessions, tables and rows of tests/locks."""

from __future__ import annotations

from tests.locks.conftest import (
    dave,
    documents,
    elsewhere,
    engine,
    keepers,
    make_engine,
    make_session,
    other,
    pytest_configure,
    read_committed,
    session,
    session_factory,
)

__all__ = [
    "dave",
    "documents",
    "elsewhere",
    "engine",
    "keepers",
    "make_engine",
    "make_session",
    "other",
    "pytest_configure",
    "read_committed",
    "session",
    "session_factory",
]
