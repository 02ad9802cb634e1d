"""The tables of docs/errors.md leave no number out."""

from __future__ import annotations

import pytest

from sa_doclock import LockNotAvailable
from sa_doclock.dialects import strategy_classes
from tests.integration.lock_errors.rows import ROWS, Where
from tests.integration.lock_errors.situations import SITUATIONS


@pytest.mark.parametrize("name", ROWS)
def test_every_number_of_a_database_has_its_rows(name: str) -> None:
    strategy = strategy_classes()[name]
    known = {
        **strategy.errors.failures,
        **{number: kind for number, (kind, _) in strategy.errors.refusals.items()},
        **dict.fromkeys(strategy.errors.statement_limits, LockNotAvailable),
    }
    # An error of a pooler in between is no situation of the server: tests/integration/poolers has it.
    behind_pooler = strategy.errors.advice.keys() - strategy.errors.failures.keys()
    assert {row.number: row.error for row in ROWS[name]} == {
        number: error for number, error in known.items() if number not in behind_pooler
    }


@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_failure_elsewhere_comes_from_a_lock_alone(name: str) -> None:
    strategy = strategy_classes()[name]
    for row in ROWS[name]:
        assert row.where == (Where.LOCK,) or row.number in strategy.errors.failures, row


def test_every_situation_is_in_a_row() -> None:
    named = {row.situation for name, rows in ROWS.items() if name != "mssql" for row in rows}
    assert named == set(SITUATIONS)
