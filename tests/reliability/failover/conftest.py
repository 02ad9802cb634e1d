"""The servers that each of these tests starts for itself; or one line that says loudly why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lab.running.workers import check_required, note_skipped
from lab.servers.model import UnavailableError
from tests.reliability.failover.run import Servers


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[type[Servers]], Servers]]:
    """Return a function that starts servers; they are stopped in the end."""
    with ExitStack() as stack:

        def start_servers(kind: type[Servers]) -> Servers:
            if kind.database not in request.config.getoption("databases").split(","):
                pytest.skip(f"--databases leaves {kind.database} out")
            try:
                return stack.enter_context(kind.started())
            except UnavailableError as exc:
                check_required(kind.program, str(exc))
                note_skipped(request.config, f"FAILOVER, {kind.program}", str(exc))
                pytest.skip(f"no {kind.program}: {exc}")

        yield start_servers
