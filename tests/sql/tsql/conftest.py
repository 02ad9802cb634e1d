"""The parser, once for all tests of this folder; or one line that says loudly why not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sql.tsql.checker import Checker, checking
from tests.sql.tsql.wheels import unpacked
from tests.support.servers.model import UnavailableError
from tests.support.workers import note_skipped


@pytest.fixture(scope="package")
def checker(request: pytest.FixtureRequest) -> Iterator[Checker]:
    """Give the test Microsoft's parser."""
    try:
        folder = unpacked()
    except UnavailableError as exc:
        note_skipped(request.config, "PARSER OF SQL SERVER", str(exc))
        pytest.skip(f"no T-SQL parser: {exc}")
    with checking(folder) as found:
        yield found
