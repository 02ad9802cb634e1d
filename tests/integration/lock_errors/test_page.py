"""The tables of docs/errors.md leave no number out."""

from __future__ import annotations

import pytest

from sa_doclock.dialects import strategy_classes
from tests.integration.lock_errors.rows import ROWS, Where
from tests.integration.lock_errors.situations import SITUATIONS


@pytest.mark.parametrize("name", ROWS)
def test_every_number_of_a_database_has_its_rows(name: str) -> None:
    strategy = strategy_classes()[name]
    # An error of a pooler in between is no situation of the server: tests/integration/poolers has it.
    assert {row.number: row.error for row in ROWS[name]} == {
        number: found.error or found.in_lock
        for number, found in strategy.errors.codes.items()
        if (found.error or found.in_lock) and not found.advice
    }


@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_failure_elsewhere_comes_from_a_lock_alone(name: str) -> None:
    strategy = strategy_classes()[name]
    for row in ROWS[name]:
        assert row.where == (Where.LOCK,) or strategy.errors[row.number].error, row


def test_every_situation_is_in_a_row() -> None:
    named = {row.situation for name, rows in ROWS.items() if name != "mssql" for row in rows}
    assert named == set(SITUATIONS)
