"""Sessions that lock, on tables with the rows of tests/support/models.py in them."""

from __future__ import annotations

from tests.integration.locking.conftest import (  # noqa: F401  # the fixtures of these tests
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
    start_over,
)
