"""The guard's word on random writes is the database's."""

from __future__ import annotations

import pytest

from tests.reliability.guard_generator.__main__ import run
from tests.support.databases import Database

pytestmark = pytest.mark.databases("sqlite", "postgresql")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_no_write_to_a_document_that_is_not_held_passes(database: Database, seed: int) -> None:
    found = run(database.engine(), seed, programs=1000)
    assert found.missed == []
    assert found.refused > 3 * found.needless.total()


def test_no_such_write_of_a_few_programs_passes(database: Database) -> None:
    found = run(database.engine(), seed=8, programs=50)
    assert found.missed == []
    assert found.refused > 3 * found.needless.total()


def test_without_the_guard_many_pass(database: Database) -> None:
    found = run(database.engine(), seed=8, programs=50, guard="off")
    assert len(found.missed) > 10
    assert not found.refused
