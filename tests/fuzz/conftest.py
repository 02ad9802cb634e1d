"""The databases of tests/sql, which are told everything and have no server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fuzz.asking import Sessions
from tests.fuzz.counting import inputs_fuzzed
from tests.fuzz.entities import put_kinds
from tests.sql.servers import DATABASES, serving


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was tried; ``SA_DOCLOCK_FUZZ_TIMES=20`` tries twenty times as much."""
    if inputs_fuzzed():
        terminalreporter.write_line(f"inputs fuzzed: {inputs_fuzzed():,}")


@pytest.fixture(scope="package")
def all_served() -> Iterator[dict[str, Sessions]]:
    """Serve all databases, once."""
    with ExitStack() as stack:
        found = {name: (name, *stack.enter_context(serving(name))) for name in DATABASES}
        for served in found.values():
            put_kinds(*served)
        yield found


@pytest.fixture(params=DATABASES)
def served(request: pytest.FixtureRequest, all_served: dict[str, Sessions]) -> Sessions:
    """Give one of them to the test."""
    return all_served[request.param]
