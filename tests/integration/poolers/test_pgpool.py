"""Locks behind pgpool-II, which sends apparent reads to a standby, as docs/poolers.md describes.

The standby of these tests stops replaying when a test must see which server answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from lab.servers.poolers import start_pgpool
from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotSupported,
    LockOptions,
    check_database,
)
from tests.integration.poolers.documents import add_ten, documents, save
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Line, Order
from tests.support.poolers import TO_PRIMARY
from tests.support.waits import wait_until, wait_until_blocked

__all__ = ["documents"]  # a fixture

pytestmark = [
    *(pytest.mark.poolers, pytest.mark.slow, pytest.mark.exhaustive),
    pytest.mark.databases("pgpool"),
]

ForUpdate, SharedRead, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
WRITE_FUNCTIONS = {"write_function_list": "a_function_of_ours"}
ADAPTIVE = {"disable_load_balance_on_write": "dml_adaptive"}
#: A stable function, which pgpool-II treats as a read.
PORT = sa.text("SELECT inet_server_port()")

Behind = Callable[..., sa.Engine]


@pytest.fixture
def behind(documents: Database) -> Iterator[Behind]:
    """Return a function that makes an engine behind another pgpool-II, with these settings."""
    started, engines = [], []

    def engine(**settings: str) -> sa.Engine:
        started.append(start_pgpool(documents.direct_url, documents.standby_url, **settings))
        engines.append(sa.create_engine(started[-1].url))
        return engines[-1]

    yield engine
    for one in engines:
        one.dispose()
    for server in started:
        server.stop()


@pytest.fixture
def standby(documents: Database) -> Iterator[sa.Connection]:
    """Connect to the standby, without pgpool-II."""
    engine = sa.create_engine(
        documents.standby_url, poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    with documents.observer().connect() as primary, engine.connect() as connection:
        position = primary.scalar(sa.text("SELECT pg_current_wal_flush_lsn()::text"))
        caught_up = sa.text("SELECT pg_last_wal_replay_lsn() >= CAST(:position AS pg_lsn)")
        wait_until(lambda: connection.scalar(caught_up, {"position": position}))
        yield connection


@contextmanager
def behind_the_primary(documents: Database, standby: sa.Connection) -> Iterator[None]:
    """Keep the old totals and values on the standby, 30 and not 31."""
    standby.exec_driver_sql("SELECT pg_wal_replay_pause()")
    paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'"
    try:
        wait_until(lambda: standby.exec_driver_sql(paused).scalar())
        with documents.observer().connect() as connection:
            connection.execute(sa.update(Order).where(Order.id == 1).values(total=31))
            connection.execute(sa.update(Line).where(Line.order_id == 1).values(name="new"))
        yield
    finally:
        standby.exec_driver_sql("SELECT pg_wal_replay_resume()")


def names(order: Order) -> set[str]:
    return {line.name for line in order.lines}


def codes(engine: sa.Engine) -> set[str]:
    found = {one.code for one in check_database(engine)}
    assert "not-checked" not in found
    return {one for one in found if one.startswith("postgresql-standby")}


@pytest.mark.parametrize("pipeline", [False, True])
def test_what_is_read_under_a_lock_is_fresh_also_where_reads_are_balanced(
    documents: Database, standby: sa.Connection, behind: Behind, *, pipeline: bool
) -> None:
    engine = behind()
    with behind_the_primary(documents, standby):
        for lock in (ForUpdate, SharedRead, ForUpdate | LockOptions.NoWait):
            with LockingSession(engine, pipeline=pipeline) as session:
                order = session.get_one(Order, 1)
                assert (order.total, "new" in names(order)) == (30, False)  # the standby's
                session.get_one_entity(Order, 1, lock)
                session.expire(order, ["lines"])
                assert (order.total, names(order)) == (31, {"new"})
        for _ in range(40 if pipeline else 1):  # by chance, and under load
            with LockingSession(engine, pipeline=pipeline) as session:
                assert session.get_one(Order, 1).total == 30
            with LockingSession(engine, pipeline=pipeline) as session:
                order = session.get_one_document(Order, 1, ForUpdate)
                assert (order.total, names(order)) == (31, {"new"})


def test_so_it_is_under_a_named_lock(
    documents: Database, standby: sa.Connection, behind: Behind
) -> None:
    with behind_the_primary(documents, standby), LockingSession(behind()) as session:
        session.lock_key("a key", lock_timeout=7)
        assert session.get_one(Order, 1).total == 31


def test_a_snapshot_is_the_standbys_where_reads_are_balanced(
    documents: Database, standby: sa.Connection, behind: Behind
) -> None:
    engine = behind()
    with behind_the_primary(documents, standby):
        with LockingSession(engine) as session:
            assert session.get_one_entity(Order, 1, SnapshotRead).total == 30
            # A volatile function goes to the primary: that is another snapshot, and it stays there.
            both = sa.select(Order.total, sa.func.random()).where(Order.id == 1)
            assert session.execute(both).one()[0] == 31
            assert session.scalar(sa.select(Order.total).where(Order.id == 1)) == 31
        with LockingSession(documents.engine()) as session:
            assert session.get_one_entity(Order, 1, SnapshotRead).total == 31


def test_with_the_setting_of_the_page_nothing_is_read_from_the_standby(
    documents: Database, standby: sa.Connection
) -> None:
    with behind_the_primary(documents, standby), LockingSession(documents.engine()) as session:
        assert session.get_one(Order, 1).total == 31
    assert codes(documents.engine()) == set()


def test_dml_adaptive_reads_the_parts_of_a_locked_document_from_the_standby(
    documents: Database, standby: sa.Connection, behind: Behind
) -> None:
    engine = behind(**ADAPTIVE)
    with behind_the_primary(documents, standby), LockingSession(engine) as session:
        order = session.get_one_document(Order, 1, ForUpdate)
        assert order.total == 31
        assert "new" not in names(order)  # the silent gap
    assert codes(engine) == {"postgresql-standby-under-lock", "postgresql-standby-reads"}
    assert codes(behind(**ADAPTIVE, **TO_PRIMARY)) == set()


def test_a_lock_inside_of_a_statement_of_the_program_does_not_end_the_balancing(
    behind: Behind, documents: Database
) -> None:
    inside = "SELECT * FROM (SELECT id FROM lk_order WHERE id = 1 FOR UPDATE) AS locked"
    primary = sa.make_url(documents.direct_url).port
    with behind().connect() as connection:
        connection.exec_driver_sql(inside)
        assert connection.scalar(PORT) != primary
        connection.rollback()
        connection.exec_driver_sql("SELECT id FROM lk_order WHERE id = 1 FOR UPDATE")
        assert connection.scalar(PORT) == primary


def test_a_list_of_functions_sends_the_other_functions_to_the_standby(behind: Behind) -> None:
    engine = behind(**WRITE_FUNCTIONS)
    with LockingSession(engine) as session, pytest.raises(LockNotSupported, match="standby"):
        session.lock_key("a key")
    assert "postgresql-standby-under-lock" in codes(engine)  # set_config() too
    with LockingSession(behind(**WRITE_FUNCTIONS, **TO_PRIMARY)) as session:
        session.lock_key("a key", lock_timeout=7)


def test_check_database_finds_that_reads_are_balanced(documents: Database, behind: Behind) -> None:
    assert codes(behind()) == {"postgresql-standby-reads"}
    assert codes(behind(load_balance_mode="off")) == set()
    assert codes(documents.observer()) == set()  # a primary with a standby, without a pooler


def test_programs_that_only_read_can_have_the_standby(documents: Database, behind: Behind) -> None:
    reports = {"app_name_redirect_preference_list": "reports:standby"}
    url = behind(**TO_PRIMARY, **reports).url
    for name, port_of in (("reports", documents.standby_url), ("locks", documents.direct_url)):
        engine = sa.create_engine(url, connect_args={"application_name": name})
        with engine.connect() as connection:
            assert connection.scalar(PORT) == sa.make_url(port_of).port
        engine.dispose()


def asyncpg_url(documents: Database) -> sa.URL:
    return sa.make_url(documents.url).set(drivername="postgresql+asyncpg")


def test_the_cursors_of_other_drivers_do_not(documents: Database) -> None:
    every = sa.select(Order.id).order_by(Order.id)
    engine = sa.create_engine(sa.make_url(documents.url).set(drivername="postgresql+psycopg2"))
    with engine.connect().execution_options(stream_results=True) as connection:
        assert connection.scalars(every).all() == [1, 2]
    engine.dispose()

    async def read() -> list[int]:
        engine = create_async_engine(asyncpg_url(documents))
        async with engine.connect() as connection, connection.stream(every) as rows:
            found = [row.id async for row in rows]
        await engine.dispose()
        return found

    assert asyncio.run(read()) == [1, 2]


def test_a_server_side_cursor_fails(documents: Database) -> None:
    with documents.engine().connect() as connection:
        driver: Any = connection.connection.driver_connection
        with driver.cursor("of_the_server") as cursor, pytest.raises(Exception, match="Describe"):
            cursor.execute("SELECT id FROM lk_order")


@pytest.fixture
def deferred(documents: Database) -> sa.Table:
    """Return a table with a constraint that COMMIT checks."""
    unique = sa.UniqueConstraint("id", deferrable=True, initially="DEFERRED")
    table = sa.Table("lk_deferred", sa.MetaData(), sa.Column("id", sa.Integer), unique)
    documents.create(table.metadata)
    return table


def test_after_a_commit_that_fails_the_first_statement_fails_too(
    documents: Database, deferred: sa.Table
) -> None:
    engine = documents.engine(pool_size=1)
    with LockingSession(engine) as session:
        session.execute(sa.insert(deferred), [{"id": 1}, {"id": 1}])
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
    with LockingSession(engine) as session:
        with pytest.raises(sa.exc.InternalError, match="current transaction is aborted"):
            session.get_one(Order, 1)
        session.rollback()
        assert add_ten(session)


def test_with_asyncpg_all_statements_fail(documents: Database, deferred: sa.Table) -> None:
    async def commit() -> None:
        engine = create_async_engine(asyncpg_url(documents), pool_size=1)
        async with AsyncLockingSession(engine) as session:
            for _ in range(2):
                await session.execute(sa.insert(deferred).values(id=1))
            with pytest.raises(sa.exc.IntegrityError):
                await session.commit()
            for _ in range(3):
                await session.rollback()
                with pytest.raises(sa.exc.DBAPIError, match="current transaction is aborted"):
                    await session.get_one(Order, 1)
            await session.invalidate()
            assert await session.get_one(Order, 1)
        await engine.dispose()

    asyncio.run(commit())


def test_a_constraint_that_is_looked_at_before_commit_does_no_harm(
    documents: Database, deferred: sa.Table
) -> None:
    with LockingSession(documents.engine(pool_size=1)) as session:
        session.execute(sa.insert(deferred), [{"id": 1}, {"id": 1}])
        with pytest.raises(sa.exc.IntegrityError):
            session.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
        session.rollback()
        assert add_ten(session)


def test_an_idle_limit_ends_the_transaction_at_the_standby_while_one_waits_at_the_primary(
    documents: Database,
    behind: Behind,
    standby: sa.Connection,
    alice: Actor[LockingSession],
) -> None:
    others = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    alice.does(add_ten)
    sessions = sessionmaker(behind(), class_=LockingSession)
    bob = Actor("bob", sessions, documents)
    documents.connections.watch(sessions.kw["bind"])
    try:
        limit = "SET LOCAL idle_in_transaction_session_timeout = '1s'"
        bob.does(lambda session: session.execute(sa.text(limit)))
        step = bob.starts(add_ten)
        wait_until_blocked(waiter=bob, holder=alice, step=step, seconds=30)
        wait_until(lambda: standby.exec_driver_sql(others).scalar() == 0)
        alice.does(save)
        with pytest.raises(sa.exc.DBAPIError):
            step.result(30)
    finally:
        bob.leave()
        bob.join()


def cure_of(engine: sa.Engine, code: str) -> str:
    (cure,) = [one.cure for one in check_database(engine) if one.code == code]
    return cure


def test_check_database_finds_what_fails_behind_it(documents: Database, behind: Behind) -> None:
    faults = {
        "psycopg": {"SET CONSTRAINTS", "stream_results", "hold_limit"},
        "psycopg2": {"SET CONSTRAINTS"},
    }
    for url in (documents.url, behind().url):
        for driver, words in faults.items():
            engine = sa.create_engine(sa.make_url(url).set(drivername=f"postgresql+{driver}"))
            cure = cure_of(engine, "postgresql-pgpool")
            engine.dispose()
            assert {word for word in faults["psycopg"] if word in cure} == words
    assert "postgresql-pgpool" not in {one.code for one in check_database(documents.observer())}


def test_so_it_does_with_asyncpg(documents: Database) -> None:
    async def check() -> str:
        engine = create_async_engine(asyncpg_url(documents))
        async with engine.connect() as connection:
            found = await connection.run_sync(
                lambda _: cure_of(engine.sync_engine, "postgresql-pgpool")
            )
        await engine.dispose()
        return found

    cure = asyncio.run(check())
    assert "SET CONSTRAINTS" in cure
    assert "hold_limit" not in cure


def test_the_cure_of_the_idle_limit_does_no_harm(documents: Database, behind: Behind) -> None:
    """Load-balanced reads must first go to the primary: see the two tests of an idle limit."""
    code, role = "postgresql-idle-limit", "ALTER ROLE CURRENT_USER SET idle_in_transaction"
    balanced, to_primary = behind(), documents.engine()
    assert cure_of(balanced, code).startswith("first have the pooler send all statements for this")
    assert f"; then {role}" in cure_of(balanced, code)
    assert cure_of(to_primary, code).startswith(role)
    assert "give the sessions a hold_limit" in cure_of(documents.observer(), code)
    for engine in (balanced, to_primary):
        assert "hold_limit" not in cure_of(engine, code)


def test_an_idle_limit_waits_for_a_lock_where_all_goes_to_the_primary(
    documents: Database, alice: Actor[LockingSession]
) -> None:
    idle = sa.text(
        "SELECT now() - query_start > interval '1.5 s' FROM pg_stat_activity WHERE pid = :pid"
    )
    before = alice.does(add_ten)
    sessions = sessionmaker(documents.engine(), class_=LockingSession)
    bob = Actor("bob", sessions, documents)
    try:
        limit = "SET LOCAL idle_in_transaction_session_timeout = '1s'"
        bob.does(lambda session: session.execute(sa.text(limit)))
        step = bob.starts(add_ten)
        wait_until_blocked(waiter=bob, holder=alice, step=step, seconds=30)
        pid = bob.server_pid()
        with documents.observer().connect() as server:
            wait_until(lambda: server.scalar(idle, {"pid": pid}))
        alice.does(save)
        assert step.result(30) == before + 10
        bob.does(save)
    finally:
        bob.leave()
        bob.join()
