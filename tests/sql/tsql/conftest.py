"""The parser, once for all tests of this folder; or a prominent line that explains why it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.running.workers import check_required, note_skipped
from lab.servers.model import UnavailableError
from lab.tsql.checker import Checker, checking
from lab.tsql.wheels import PARSER, unpacked


@pytest.fixture(scope="session")
def checker(request: pytest.FixtureRequest) -> Iterator[Checker]:
    """Provide Microsoft's parser."""
    try:
        folder = found_parser(request.config)
    except UnavailableError as exc:
        pytest.skip(f"no T-SQL parser: {exc}")
    with checking(folder) as found:
        yield found


def found_parser(config: pytest.Config) -> Path:
    """Return the folder with the parser; if it is not available, say so loudly or fail.

    :raises UnavailableError: it is neither available nor required.
    """
    try:
        return unpacked()
    except UnavailableError as exc:
        check_required(PARSER, str(exc))
        note_skipped(config, "PARSER OF SQL SERVER", str(exc))
        raise
