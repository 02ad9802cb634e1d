"""The table of docs/adopting.md is what each database does."""

from __future__ import annotations

import pytest

from tests.docs import idioms
from tests.support.databases import Database


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_the_idioms_are_what_the_database_makes_of_them(database: Database) -> None:
    """After a change that is meant: the commands in tests/docs/idioms.py."""
    engine = database.engine(**idioms.options_of(database.name))
    database.create(idioms.Base.metadata)
    assert idioms.measure(engine) == idioms.figures()[database.name]


def test_the_page_has_22_idioms() -> None:
    assert len(idioms.IDIOMS) == 22
