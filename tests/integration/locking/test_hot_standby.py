"""A streaming standby of PostgreSQL refuses every lock, says what to do, and serves snapshots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InterfaceError, InternalError, PendingRollbackError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from lab.running.workers import check_required, note_skipped
from lab.servers.model import UnavailableError
from lab.servers.standby import hot_standby
from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
    run_transaction,
)
from tests.integration.asyncio.drivers import drivers_of
from tests.integration.locking.steps import Seen, add_ten, reads, recorded, seen
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until

pytestmark = pytest.mark.databases("postgresql")


# --------------------------------------------------------------------------------------------------
# A streaming standby of the tests' PostgreSQL server.


class Replication:
    """A primary, and a standby that streams from it."""

    def __init__(self, primary: sa.Engine, standby: sa.Engine) -> None:
        self.primary = primary
        self.standby = standby
        self._observer = standby.execution_options(isolation_level="AUTOCOMMIT")

    def catch_up(self) -> None:
        """Return when the standby has replayed everything that the primary has flushed."""
        with self.primary.connect() as connection:
            position = connection.exec_driver_sql(
                "SELECT pg_current_wal_flush_lsn()::text"
            ).scalar_one()
        self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{position}'")

    def set(self, name: str, value: str) -> None:
        """Change a setting of the standby."""
        with self._observer.connect() as connection:
            connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        self.wait_until(f"SELECT setting = '{value}' FROM pg_settings WHERE name = '{name}'")

    def wait_until(self, question: str) -> None:
        """Query the standby until it returns true."""
        with self._observer.connect() as connection:
            wait_until(lambda: connection.exec_driver_sql(question).scalar())


@pytest.fixture(scope="module")
def replications() -> Iterator[dict[str, Replication]]:
    """Keep a standby for the tests of a file: copying a server takes longer than a test."""
    with ExitStack() as stack:
        yield _Kept(stack)


class _Kept(dict[str, Replication]):
    """The standbys, created on demand, by the URLs of their primaries."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, url: str) -> Replication:
        standby = sa.create_engine(self._stack.enter_context(hot_standby(url)))
        primary = sa.create_engine(url)
        self._stack.callback(standby.dispose)
        self._stack.callback(primary.dispose)
        # The standby replays a cleanup only when no snapshot there needs the rows.
        _change(primary, "SET autovacuum = off")
        self._stack.callback(_change, primary, "RESET autovacuum")
        self[url] = Replication(primary, standby)
        return self[url]


def _change(primary: sa.Engine, setting: str) -> None:
    with primary.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM {setting}")
        connection.exec_driver_sql("SELECT pg_reload_conf()")


@pytest.fixture
def replication(
    request: pytest.FixtureRequest,
    documents: Database,
    replications: dict[str, Replication],
) -> Replication:
    """Return a standby that has replayed the rows of tests/support/models.py."""
    if documents.pooled:
        pytest.skip("a standby has no pooler of its own here")
    try:
        found = replications[documents.url]
    except UnavailableError as exc:
        check_required("standby", str(exc))
        note_skipped(request.config, "STANDBY", str(exc))
        pytest.skip(f"no standby of this server: {exc}")
    found.wait_until("SELECT status = 'streaming' FROM pg_stat_wal_receiver")
    found.catch_up()
    return found


# --------------------------------------------------------------------------------------------------
# A PostgreSQL streaming standby: locks fail with advice on what to do, and snapshots work.

SnapshotRead = LockOptions.SnapshotRead


__all__ = ["replication", "replications"]
ROWS = "a standby server cannot lock rows. Lock on the primary, or read with SnapshotRead"
KEYS = "a standby server does not know the named locks .* Take the lock on the primary"


@pytest.fixture
def session_hot_standby(replication: Replication) -> Iterator[LockingSession]:
    """Open a session on a standby with the same rows."""
    with LockingSession(replication.standby) as session:
        yield session


CALLS: dict[str, Callable[[LockingSession, LockOptions], Any]] = {
    "get_entity": lambda session, lock: session.get_entity(Order, 1, lock),
    "get_entities": lambda session, lock: session.get_entities(Order, [1, 2], lock),
    "get_document": lambda session, lock: session.get_document(Order, 1, lock),
    "entity_set": lambda session, lock: session.scalars(session.entity_set(Order, lock)).all(),
    "locked": lambda session, lock: session.locked(Order, 1, lock).__enter__(),
}


@pytest.mark.parametrize("lock", [LockOptions.ForUpdate, LockOptions.SharedRead])
@pytest.mark.parametrize("call", CALLS)
def test_no_lock_is_granted_there(
    session_hot_standby: LockingSession, call: str, lock: LockOptions
) -> None:
    with pytest.raises(LockNotSupported, match=f"Order .*{ROWS}") as caught:
        CALLS[call](session_hot_standby, lock)
    assert not caught.value.retryable
    assert not session_hot_standby.in_transaction()
    assert not session_hot_standby.held_locks


@pytest.mark.parametrize("call", CALLS)
def test_a_snapshot_is(session_hot_standby: LockingSession, call: str) -> None:
    assert CALLS[call](session_hot_standby, SnapshotRead)
    session_hot_standby.rollback()


@pytest.mark.parametrize("how", [{}, {"lock_timeout": 0}, {"lock_timeout": 5}, {"shared": True}])
def test_no_key_is_taken_there(session_hot_standby: LockingSession, how: dict[str, Any]) -> None:
    with pytest.raises(LockNotSupported, match=f"'a key' .*{KEYS}"):
        session_hot_standby.lock_key("a key", **how)
    assert not session_hot_standby.in_transaction()
    advisory = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert session_hot_standby.scalar(advisory) == 0


def test_a_transaction_goes_on_after_a_rollback_alone(session_hot_standby: LockingSession) -> None:
    with session_hot_standby.begin():
        raw = session_hot_standby.connection().connection.dbapi_connection
        assert raw is not None
        with pytest.raises(LockNotSupported):
            session_hot_standby.get_entity(Order, 1, LockOptions.SharedRead)
        with pytest.raises(
            session_hot_standby.get_bind().dialect.loaded_dbapi.Error
        ):  # docs/errors.md
            raw.cursor().execute("SELECT 1")
        session_hot_standby.rollback()
    assert reads(SnapshotRead)(session_hot_standby) == (30, [10, 20])
    session_hot_standby.release_locks()
    assert session_hot_standby.get_one_entity(Order, 1).total == 30


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_under_asyncio_too(database: Database, replication: Replication, driver: str) -> None:
    if driver not in drivers_of(database.column):
        pytest.skip("a session with pipeline=True needs psycopg")
    url = replication.standby.url.set(drivername=f"postgresql+{driver}")

    async def main() -> None:
        engine = create_async_engine(url)
        async with AsyncLockingSession(engine) as session:
            for lock in (LockOptions.ForUpdate, LockOptions.SharedRead):
                with pytest.raises(LockNotSupported, match=ROWS):
                    await session.get_entity(Order, 1, lock)
            with pytest.raises(LockNotSupported, match=KEYS):
                await session.lock_key("a key")
            order = await session.get_document(Order, 1, SnapshotRead)
            assert order is not None
            assert [line.value for line in order.lines] == [10, 20]
        await engine.dispose()

    asyncio.run(main())


# --------------------------------------------------------------------------------------------------
# A snapshot on a standby that conflicts with replication from the primary: SnapshotConflict.

_SNAPSHOTS = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
    "AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
)


@pytest.fixture
def conflicts(replication: Replication) -> Replication:
    """Prevent other sessions on the standby from delaying the recovery."""
    replication.set("max_standby_streaming_delay", "0")
    return replication


@pytest.fixture
def session(conflicts: Replication) -> Iterator[LockingSession]:
    """Open a session on the standby."""
    with LockingSession(conflicts.standby) as session:
        yield session


def clean_up_behind(replication: Replication) -> None:
    """Change order 1 on the primary, and remove the rows that older snapshots need."""
    with LockingSession(replication.primary) as writer:
        add_ten(writer)
        writer.save_changes()
    primary = replication.primary.execution_options(isolation_level="AUTOCOMMIT")
    standby = replication.standby.execution_options(isolation_level="AUTOCOMMIT")
    deadline = time.monotonic() + 30
    with primary.connect() as cleaning, standby.connect() as asking:
        while asking.exec_driver_sql(_SNAPSHOTS).scalar():
            assert time.monotonic() < deadline
            cleaning.exec_driver_sql("VACUUM lk_order, lk_line")  # skips rows that others pin
            replication.catch_up()


def test_a_statement_that_runs_is_canceled(
    conflicts: Replication, session: LockingSession, alice: Actor[LockingSession]
) -> None:
    def read_slowly(_: LockingSession) -> None:
        session.get_one_entity(Order, 1, SnapshotRead)
        session.execute(sa.text("SELECT pg_sleep(300)"))

    reading = alice.starts(read_slowly)
    conflicts.wait_until(
        "SELECT count(*) = 1 FROM pg_stat_activity "
        "WHERE query = 'SELECT pg_sleep(300)' AND state = 'active'"
    )
    clean_up_behind(conflicts)
    error = reading.exception()
    assert isinstance(error, SnapshotConflict)
    assert error.retryable
    assert "conflict with recovery" in str(error.orig)
    with pytest.raises(PendingRollbackError):
        session.get(Order, 2)
    session.rollback()
    assert session.get_one_entity(Order, 1, SnapshotRead).total == 40


def test_of_a_transaction_that_is_idle_the_connection_is_ended(
    conflicts: Replication, session: LockingSession
) -> None:
    order = session.get_one_entity(Order, 1, SnapshotRead)
    clean_up_behind(conflicts)
    with pytest.raises(SnapshotConflict) as caught:
        order.lines  # noqa: B018
    assert caught.value.retryable
    assert not session.held_locks
    session.rollback()
    assert session.get_one_entity(Order, 1, SnapshotRead).total == 40


def test_run_transaction_reads_again(conflicts: Replication) -> None:
    runs: list[int] = []

    def report(session: LockingSession) -> tuple[int, list[int]]:
        order = session.get_one_entity(Order, 1, SnapshotRead)
        runs.append(order.total)
        if len(runs) == 1:
            clean_up_behind(conflicts)
        return order.total, [line.value for line in order.lines]

    factory = sessionmaker(conflicts.standby, class_=LockingSession)
    assert run_transaction(factory, report) == (40, [20, 20])
    assert runs == [30, 40]


def test_where_the_standby_waits_a_snapshot_stays_as_it_is(replication: Replication) -> None:
    replication.set("max_standby_streaming_delay", "-1")
    with LockingSession(replication.standby) as session:
        order = session.get_one_entity(Order, 1, SnapshotRead)
        with LockingSession(replication.primary) as writer:
            add_ten(writer)
            writer.save_changes()
        replication.catch_up()  # no VACUUM
        assert (order.total, [line.value for line in order.lines]) == (30, [10, 20])


@pytest.mark.parametrize(
    ("driver", "error"),
    # asyncpg reports only a closed connection: InterfaceError. Between the server's last message
    # and the disconnect it is InternalError, "cannot switch to state 12".
    [("psycopg", SnapshotConflict), ("asyncpg", (InterfaceError, InternalError))],
    ids=["psycopg", "asyncpg"],
)
def test_under_asyncio_too_conflict(
    database: Database, conflicts: Replication, driver: str, error: Any
) -> None:
    if driver not in drivers_of(database.column):
        pytest.skip("a session with pipeline=True needs psycopg")
    url = conflicts.standby.url.set(drivername=f"postgresql+{driver}")

    async def main() -> None:
        engine = create_async_engine(url)
        async with AsyncLockingSession(engine) as session:
            await session.get_one_entity(Order, 1, SnapshotRead)
            await asyncio.to_thread(clean_up_behind, conflicts)
            with pytest.raises(error) as caught:
                await session.get_one(Order, 2)
            assert driver == "psycopg" or caught.value.connection_invalidated
            await session.rollback()
            assert (await session.get_one_entity(Order, 1, SnapshotRead)).total == 40
        await engine.dispose()

    asyncio.run(main())


# --------------------------------------------------------------------------------------------------
# get_document on a PostgreSQL hot standby: a consistent snapshot while the primary's writes arrive.


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
                add_ten(writer)  # during the update
                replication.catch_up()
                writer.save_changes()
            replication.catch_up()

    with LockingSession(replication.standby) as session:
        event.listen(replication.standby, "before_cursor_execute", ten_more_come_in)
        assert document(session) == (30, [10, 20])
        assert come_in
        assert dict(session.held_locks) == {(Order, (1,)): SnapshotRead}
        session.release_locks()
        assert document(session) == (40, [20, 20])


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
