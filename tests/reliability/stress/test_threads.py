"""Eight threads on one engine, for each way in which sessions of a process meet; also without a GIL."""

from __future__ import annotations

from typing import Any

import pytest

from sa_doclock import DocumentGate
from sa_doclock.tools.cli.database import open_database
from sa_doclock.tools.cli.workload import Plan, fresh_tables, run
from tests.reliability.stress.test_stress import summary
from tests.support.databases import Database

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gate": {"gate": True},
    "reports": {"warn_held_after": 30, "diagnose": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_eight_threads_lose_nothing(database: Database, way: str) -> None:
    lose_nothing(database, {"gate": DocumentGate()} if way == "gate" else WAYS[way])


@pytest.mark.slow
@pytest.mark.databases("postgresql")
def test_nor_in_a_pipeline(database: Database) -> None:
    if "psycopg" not in database.url:
        pytest.skip("needs psycopg 3")
    lose_nothing(database, {"pipeline": True})


def lose_nothing(database: Database, options: dict[str, Any]) -> None:
    plan = Plan(threads=8, iterations=100, whole=True, seed=1)
    with open_database(database.url, plan.threads) as target, fresh_tables(target.engine):
        outcome = run(target.engine, plan, **options)
    assert outcome.ok, summary(outcome)
