"""Nothing is wrong with the history of sessions that lock; without locks, the checker finds it."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import Engine

from tests.reliability.history.anomalies import Name
from tests.reliability.history.checker import check
from tests.reliability.history.record import ABSENT, FIRST, Outcome
from tests.reliability.history.sessions import THREADS, TRANSACTIONS, played
from tests.reliability.history.ways import WAYS
from tests.support.databases import Database


@pytest.mark.slow
def test_with_locks_there_is_no_anomaly(engine: Engine) -> None:
    run = played(engine, locks=True)
    history = run.history()
    assert list(map(str, check(history))) == []
    assert run.errors == []
    # and it is no history of sessions that kept out of each other's way
    assert len(history.transactions) == THREADS * TRANSACTIONS
    assert run.ways == WAYS.keys()
    outcomes = Counter(one.outcome for one in history.transactions.values())
    assert outcomes[Outcome.COMMITTED] > outcomes[Outcome.ABORTED] > 0
    seen = [place for each in history.seen.values() for place in each.items()]
    assert len({version.writer for _, version in seen if version != FIRST}) > THREADS
    assert any(history.is_gone(*place) for place in seen)
    assert all(version != ABSENT for _, version in seen)  # it was informed since when


@pytest.mark.slow
@pytest.mark.exhaustive
def test_without_locks_there_are_lost_updates(engine: Engine, database: Database) -> None:
    if database.name == "mariadb":  # 1020 refuses them at REPEATABLE READ, since 11.6.2
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    found = check(played(engine, locks=False).history())
    assert Name.P4 in {one.name for one in found}
