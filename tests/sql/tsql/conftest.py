"""The parser, once for all tests of this folder; or one line that says loudly why not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sql.tsql.checker import Checker, checking
from tests.sql.tsql.wheels import unpacked
from tests.support.servers.model import UnavailableError

_WHY_NOT = pytest.StashKey[str]()


@pytest.fixture(scope="package")
def checker(request: pytest.FixtureRequest) -> Iterator[Checker]:
    """Give the test Microsoft's parser."""
    try:
        folder = unpacked()
    except UnavailableError as exc:
        request.config.stash[_WHY_NOT] = str(exc)
        pytest.skip(f"no T-SQL parser: {exc}")
    with checking(folder) as found:
        yield found


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say loudly that nothing was parsed."""
    if why := config.stash.get(_WHY_NOT, None):
        line = f"SKIPPED PARSER OF SQL SERVER: {why}"
        terminalreporter.write_line(line, yellow=True, bold=True)
