"""The tables and rows of tests/integration."""

from __future__ import annotations

from tests.integration.conftest import (  # noqa: F401  # the fixtures of these tests
    documents,
    elsewhere,
    engine,
    kept_rows,
    make_engine,
    make_session,
    other,
    pytest_configure,
    read_committed,
    session,
    session_factory,
    start_over,
)
