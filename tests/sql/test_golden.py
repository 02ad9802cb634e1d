"""The SQL is what the golden files say: for every lock and kind of statement, on every database.

A reviewer reads golden/; ``python -m tests.sql.regenerate`` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import unified_diff

import pytest

from tests.sql.golden import FOLDER, compiled, sent
from tests.sql.servers import DATABASES

KINDS = (compiled, sent)


@pytest.mark.parametrize("name", DATABASES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_sql_is_the_golden_one(kind: Callable[[str], str], name: str) -> None:
    path = FOLDER / kind.__name__ / f"{name}.sql"
    golden = path.read_text(encoding="utf-8").splitlines()
    changes = unified_diff(golden, kind(name).splitlines(), str(path), "now", lineterm="")
    if text := "\n".join(changes):
        pytest.fail(text, pytrace=False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_there_is_a_golden_file_for_each_database_and_no_other(kind: Callable[[str], str]) -> None:
    files = {path.stem for path in (FOLDER / kind.__name__).glob("*")}
    assert files == set(DATABASES)
