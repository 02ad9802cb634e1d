"""The stress run, recorded: its own checks and the checker agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from sa_doclock import LockOptions
from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.recording import VersionedPlan, recorded
from tests.reliability.history.sessions import THREADS
from tests.support.databases import Database

SHARED, SNAPSHOT = LockOptions.SharedRead, LockOptions.SnapshotRead
SMALL = VersionedPlan(documents=3, threads=THREADS, iterations=25, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "whole", "details_only"),
    [
        (SHARED, False, False),
        (SHARED, True, True),
        (SNAPSHOT, True, False),
        (SNAPSHOT, False, True),
    ],
    ids=["shared", "shared-whole-details", "snapshot-whole", "snapshot-details"],
)
def test_with_locks_its_history_has_no_anomaly(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    read: LockOptions,
    whole: bool,
    details_only: bool,
) -> None:
    plan = replace(SMALL, read=read, whole=whole, details_only=details_only)
    outcome, history = recorded(engine, plan, monkeypatch)
    assert list(map(str, check(history))) == []
    assert outcome.ok, outcome.tally.errors
    assert len(history.transactions) == plan.total_steps


def test_without_locks_it_has(
    engine: Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.name == "mariadb":  # 1020 refuses them at REPEATABLE READ, since 11.6.2
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    plan = replace(SMALL, locks=False, documents=1, iterations=3)
    _, history = recorded(engine, plan, monkeypatch)
    assert Name.P4 in {found.name for found in check(history)}
