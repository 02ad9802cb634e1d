"""Session(twophase=True): XA START, or what the database has for it, begins the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.locking.steps import FIRST, finds_held, seen
from tests.support.databases import PIPELINED
from tests.support.models import Line, Order

# PostgreSQL prepares no transaction unless it is configured for that, so nothing is committed there.
pytestmark = [
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.not_databases(PIPELINED),  # which excludes twophase=True
]

ForUpdate, SnapshotRead = LockOptions.ForUpdate, LockOptions.SnapshotRead
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)


@pytest.fixture(params=["READ COMMITTED", "REPEATABLE READ"])
def session(
    request: pytest.FixtureRequest, make_engine: Callable[..., sa.Engine]
) -> Iterator[LockingSession]:
    """Open a two-phase session on an engine at either level."""
    engine = make_engine(isolation_level=request.param)
    with LockingSession(engine, twophase=True) as session:
        yield session


def test_a_snapshot_is_one(session: LockingSession, elsewhere: Run) -> None:
    order = session.get_one_entity(Order, 1, SnapshotRead)
    elsewhere(sa.update(Order).values(total=99), sa.update(Line).values(value=99))
    assert seen(order) == FIRST
    assert seen(session.get_one_document(Order, 2, SnapshotRead)) == (5, [5])
    session.rollback()
    assert session.get_one_entity(Order, 1, SnapshotRead).total == 99


def test_a_snapshot_is_not_written_in(session: LockingSession, elsewhere: Run) -> None:
    session.get_one_entity(Order, 1, SnapshotRead).total = 31
    with pytest.raises(WrongIsolation, match="read-only"):
        session.flush()
    session.rollback()
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.databases("mysql", "mariadb")
def test_the_transaction_after_a_snapshot_locks_and_commits(
    session: LockingSession, other: LockingSession, elsewhere: Run
) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    session.commit()
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    assert finds_held()(other)
    session.commit()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(31,)]
