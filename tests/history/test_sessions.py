"""Nothing is wrong with the history of sessions that lock; without locks, the checker finds it."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Engine

from tests.databases import Database
from tests.history.anomalies import Name
from tests.history.checker import check
from tests.history.record import FIRST, Outcome
from tests.history.sessions import THREADS, TRANSACTIONS, played


def test_with_locks_there_is_no_anomaly(engine: Engine) -> None:
    history, errors = played(engine, locks=True)
    assert list(map(str, check(history))) == []
    assert errors == []
    # and it is no history of sessions that kept out of each other's way
    assert len(history.transactions) == THREADS * TRANSACTIONS
    outcomes = Counter(one.outcome for one in history.transactions.values())
    assert outcomes[Outcome.COMMITTED] > outcomes[Outcome.ABORTED] > 0
    seen = [version for seen in history.seen.values() for version in seen.values()]
    assert len({version.writer for version in seen if version != FIRST}) > THREADS


def test_without_locks_there_are_lost_updates(engine: Engine, database: Database) -> None:
    if database.name == "mariadb":  # 1020 refuses them at REPEATABLE READ, since 11.6.2
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    history, _ = played(engine, locks=False)
    assert Name.P4 in {found.name for found in check(history)}
