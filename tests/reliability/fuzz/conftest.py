"""The databases of tests/sql, which accept everything and have no server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.reliability import Reliability
from tests.reliability.fuzz.asking import ASKED, Sessions
from tests.reliability.fuzz.shapes import put_kinds
from tests.sql.servers import DATABASES, serving


@pytest.fixture(scope="session")
def all_served(reliability: Reliability) -> Iterator[dict[str, Sessions]]:
    """Serve all databases once; count the questions to each."""
    ASKED.clear()
    with ExitStack() as stack:
        found = {name: (name, *stack.enter_context(serving(name))) for name in DATABASES}
        for served in found.values():
            put_kinds(*served)
        yield found
    reliability.fuzzed("options, entities, session states and statements", ASKED.total())


@pytest.fixture(params=DATABASES)
def served(request: pytest.FixtureRequest, all_served: dict[str, Sessions]) -> Sessions:
    return all_served[request.param]
