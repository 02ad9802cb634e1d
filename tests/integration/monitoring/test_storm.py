"""Many that give up at once: one connection asks for all of them, and its answer is shared."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.features import diagnosis
from tests.integration.locking.steps import locks
from tests.integration.monitoring.side import side_connections
from tests.integration.monitoring.steps import (
    KNOWS_HOLDERS,
    ON_SERVERS,
    ids,
    refused,
    wait_until_reported,
)
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = ON_SERVERS

Session = Actor[LockingSession]
MANY = 40
FOR_UPDATE = LockOptions.ForUpdate
ALL_OF_THEM = {"pool_size": MANY, "max_overflow": 0}


@pytest.fixture(autouse=True)
def shared_for_long(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # it comes first
    """Share an answer until the end of the test, however slow the machine is."""
    monkeypatch.setattr(diagnosis, "SHARED_FOR", 2 * PATIENCE)
    monkeypatch.setattr(diagnosis, "PATIENCE", PATIENCE)


@pytest.mark.parametrize("held", [1, 2])
def test_forty_threads_open_one_connection(
    database: Database, alice: Session, make_engine: Callable[..., sa.Engine], held: int
) -> None:
    for ident in range(1, 1 + held):
        alice.does(locks(Order, ident))
    wait_until_reported(database, alice)
    engine = make_engine(**ALL_OF_THEM)
    sessions = [LockingSession(engine, diagnose=True) for _ in range(MANY)]
    pooled = [session.connection() for session in sessions]  # open, so that the pool makes no more
    for session in sessions:
        session.rollback()
    del pooled
    together = Barrier(MANY)

    def give_up(number: int) -> LockNotAvailable:
        together.wait(PATIENCE)
        ident = 1 + number % held
        return refused(sessions[number], Order, ident, lock=FOR_UPDATE, lock_timeout=0.1)

    with side_connections(engine, held) as seen, ThreadPoolExecutor(MANY) as threads:
        errors = list(threads.map(give_up, range(MANY)))
    for session in sessions:
        session.close()
    assert seen == ["made", "closed"]
    if KNOWS_HOLDERS[database.name]:
        mine = ids(alice)
        assert all({one.connection_id for one in error.blockers} == mine for error in errors)
    else:
        assert all(error.blockers for error in errors)
