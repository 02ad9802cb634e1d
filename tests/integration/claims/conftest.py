"""A table of jobs beside the documents of tests/support/models.py, and loops over the jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.claims.jobs import Base, put_jobs
from tests.integration.conftest import KeptRows


@pytest.fixture(scope="session")
def kept_rows() -> Iterator[KeptRows]:
    """Keep the table; each test starts with ten new jobs."""
    rows = KeptRows(Base.metadata, put_jobs)
    yield rows
    rows.close()
