"""A hot standby of PostgreSQL: it refuses every row lock, and gives snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.databases import Database
from tests.locks.standby import hot_standby
from tests.locks.steps import FIRST, reads
from tests.models import Order
from tests.servers.model import UnavailableError

pytestmark = pytest.mark.databases("postgresql")


@pytest.fixture
def session(documents: Database) -> Iterator[LockingSession]:
    """Open a session on a standby that has the same rows."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(hot_standby(documents.url))
        except UnavailableError as exc:
            pytest.skip(f"no standby of this server: {exc}")
        engine = sa.create_engine(url)
        stack.callback(engine.dispose)
        yield stack.enter_context(LockingSession(engine))


def test_a_hot_standby(session: LockingSession) -> None:
    for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
        with pytest.raises(LockNotSupported, match=r"Order 1 .* a standby server cannot lock rows"):
            session.get_entity(Order, 1, lock)
        assert not session.in_transaction()
    with session.begin():
        raw = session.connection().connection.dbapi_connection
        assert raw is not None
        with pytest.raises(LockNotSupported):
            session.get_entity(Order, 1, LockOptions.SharedRead)
        with pytest.raises(session.get_bind().dialect.loaded_dbapi.Error):  # docs/not-granted.md
            raw.cursor().execute("SELECT 1")
        session.rollback()
    assert reads(LockOptions.SnapshotRead)(session) == FIRST
    session.release_locks()
    assert session.get_one_entity(Order, 1).total == 30
