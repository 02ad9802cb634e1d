"""Whoever starts the servers of docker-compose.yml by hand, and CI, gives the tests these URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers import NAMES, url_variable
from tests.support.servers.docker import URLS

ROOT = Path(__file__).resolve().parents[2]


def _lines_of(path: str) -> list[str]:
    return [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_the_compose_file_tells_how_to_reach_what_it_starts(name: str) -> None:
    lines = _lines_of("docker-compose.yml")
    assert f"#   export {url_variable(name)}='{URLS[name]}'" in lines
    assert f"{name}:" in lines


def test_ci_tests_every_database_and_gives_the_url_of_sql_server() -> None:
    lines = _lines_of(".github/workflows/ci.yml")
    assert f"database: [{', '.join(NAMES)}, sqlite]" in lines
    assert f"{url_variable('mssql')}: {URLS['mssql']}" in lines
