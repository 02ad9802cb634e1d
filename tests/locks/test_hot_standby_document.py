"""get_document on a hot standby of PostgreSQL: of one moment, while the primary's writes come in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotSupported, LockOptions, WrongIsolation
from tests.databases import Database
from tests.locks.standby import hot_standby
from tests.locks.steps import FIRST, TEN_MORE, Seen, add_ten, recorded, seen
from tests.models import Order
from tests.servers.model import UnavailableError

pytestmark = pytest.mark.databases("postgresql")

SnapshotRead = LockOptions.SnapshotRead


class Replication:
    """A primary, and a standby that streams from it."""

    def __init__(self, primary: sa.Engine, standby: sa.Engine) -> None:
        self.primary = primary
        self.standby = standby
        self._observer = standby.execution_options(isolation_level="AUTOCOMMIT")

    def start(self) -> None:
        """Let the standby stream."""
        url = self.primary.url
        source = f"host={url.host} port={url.port or 5432} user={url.username}"
        with self._observer.connect() as connection:
            connection.exec_driver_sql(
                f"ALTER SYSTEM SET primary_conninfo = '{source} password={url.password}'"
            )
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        self.wait_until("SELECT status = 'streaming' FROM pg_stat_wal_receiver")

    def catch_up(self) -> None:
        """Return when the standby has replayed what the primary has written."""
        with self.primary.connect() as connection:
            position = connection.exec_driver_sql("SELECT pg_current_wal_lsn()::text").scalar_one()
        self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def wait_until(self, question: str) -> None:
        """Ask the standby until it says yes."""
        deadline = time.monotonic() + 20
        with self._observer.connect() as connection:
            while not connection.exec_driver_sql(question).scalar():
                assert time.monotonic() < deadline, question
                time.sleep(0.02)


@pytest.fixture
def replication(documents: Database) -> Iterator[Replication]:
    """Copy the server, with the rows of tests/models.py, and let the copy follow it."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(hot_standby(documents.url))
        except UnavailableError as exc:
            pytest.skip(f"no standby of this server: {exc}")
        engine = sa.create_engine(url)
        stack.callback(engine.dispose)
        replication = Replication(documents.engine(), engine)
        replication.start()
        yield replication


def document(session: LockingSession, lock: LockOptions = SnapshotRead) -> Seen:
    order = session.get_document(Order, 1, lock)
    assert order is not None
    assert "lines" in sa.inspect(order).dict
    return seen(order)


def test_a_document_is_of_one_moment_while_writes_come_in(replication: Replication) -> None:
    come_in: list[str] = []

    def ten_more_come_in(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM lk_line" in statement and not come_in:
            come_in.append(statement)
            with LockingSession(replication.primary) as writer:
                add_ten(writer)  # in mid-update
                replication.catch_up()
                writer.save_changes()
            replication.catch_up()

    with LockingSession(replication.standby) as session:
        event.listen(replication.standby, "before_cursor_execute", ten_more_come_in)
        assert document(session) == FIRST
        assert come_in
        assert dict(session.held_locks) == {(Order, (1,)): SnapshotRead}
        session.release_locks()
        assert document(session) == TEN_MORE


def test_without_it_the_parts_are_newer_than_the_header(replication: Replication) -> None:
    come_in: list[str] = []

    def ten_more_come_in(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM lk_line" in statement and not come_in:
            come_in.append(statement)
            with LockingSession(replication.primary) as writer:
                add_ten(writer)
                writer.save_changes()
            replication.catch_up()

    with LockingSession(replication.standby) as session:
        event.listen(replication.standby, "before_cursor_execute", ten_more_come_in)
        assert document(session, LockOptions.None_) == (30, [20, 20])


def test_nothing_is_locked_or_written_there(replication: Replication) -> None:
    calls: list[Callable[[LockingSession, LockOptions], Any]] = [
        lambda session, lock: session.get_document(Order, 1, lock),
        lambda session, lock: session.get_documents(Order, [1, 2], lock),
    ]
    with LockingSession(replication.standby) as session:
        for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
            for call in calls:
                with pytest.raises(LockNotSupported, match="a standby server cannot lock rows"):
                    call(session, lock)
                assert not session.in_transaction()
        assert len(session.get_documents(Order, [1, 2], SnapshotRead)) == 2
        with recorded(replication.standby) as statements:
            with pytest.raises(WrongIsolation, match="read-only"):
                session.execute(sa.update(Order).values(total=1))
            session.get_one(Order, 1).total = 1
            with pytest.raises(WrongIsolation, match="read-only"):
                session.flush()
        assert not [text for text in statements if "UPDATE" in text]
