"""Locks behind each pooler, as docs/poolers.md promises.

The tests of tests/integration/locking run there too, if a run names the poolers:
``--databases pgbouncer-transaction,pgbouncer-session,pgpool``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    claim_each,
)
from tests.integration.poolers.documents import add_ten, documents, save, total
from tests.support.actors import Actor
from tests.support.databases import PGPOOL, Database
from tests.support.models import Order
from tests.support.poolers import skip_without
from tests.support.waits import wait_until_blocked

__all__ = ["documents"]  # a fixture

ForUpdate = LockOptions.ForUpdate
pytestmark = [pytest.mark.poolers, pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(params=["psycopg", "psycopg2"])
def driver(request: pytest.FixtureRequest, documents: Database) -> str:
    """Make the test's engines use this driver."""
    name: str = request.param
    if find_spec(name) is None:
        skip_without(request.config, name, "it is not installed")
    url = sa.make_url(documents.url).set(drivername=f"postgresql+{name}")
    documents.url = url.render_as_string(hide_password=False)
    return name


@pytest.mark.parametrize("pipeline", [False, True])
def test_the_second_waits_and_nothing_is_lost(
    driver: str,
    alice: Actor[LockingSession],
    enter: Callable[[str], Actor[LockingSession]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    pipeline: bool,
) -> None:
    if pipeline and driver != "psycopg":
        pytest.skip("psycopg 3 alone has a pipeline")
    defaults = LockingSession.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "pipeline", pipeline)
    bob = enter("bob")
    assert bob.does(lambda session: session.connection().dialect.driver) == driver
    bob.does(save)
    before = alice.does(add_ten)
    step = bob.starts(add_ten)
    wait_until_blocked(waiter=bob, holder=alice, step=step, seconds=30)
    alice.does(save)
    assert step.result(30) == before + 10
    bob.does(save)


@pytest.mark.usefixtures("driver")
def test_a_named_lock_is_the_transactions(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(lambda session: session.lock_key("a key"))
    with pytest.raises(LockNotAvailable):
        bob.does(lambda session: session.lock_key("a key", lock_timeout=0))
    bob.does(lambda session: session.rollback())
    alice.does(lambda session: session.commit())
    bob.does(lambda session: session.lock_key("a key", lock_timeout=0))


@pytest.mark.usefixtures("driver")
def test_a_lock_timeout_ends_with_its_lock(
    documents: Database, alice: Actor[LockingSession]
) -> None:
    alice.does(add_ten)
    with LockingSession(documents.engine()) as session:
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0.05)
        session.get_entity(Order, 2, ForUpdate, lock_timeout=7)
        assert session.scalar(sa.text("SHOW lock_timeout")) == "0"
        session.commit()
        assert session.scalar(sa.text("SHOW lock_timeout")) == "0"


@pytest.mark.usefixtures("driver")
def test_a_snapshot_leaves_no_read_only_connection(documents: Database) -> None:
    engine = documents.engine()
    for _ in range(3):
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, LockOptions.SnapshotRead)
            shown = session.scalar(sa.text("SHOW transaction_read_only"))
            assert (shown, session.connection().get_isolation_level()) == ("on", "REPEATABLE READ")
        with LockingSession(engine) as session:
            add_ten(session)
            assert session.connection().get_isolation_level() == "READ COMMITTED"
            session.commit()


@pytest.mark.usefixtures("driver")
def test_claims_share_all_rows(documents: Database) -> None:
    sessions = sessionmaker(documents.engine(), class_=LockingSession)
    done = []
    for claim in claim_each(sessions, sa.select(Order).order_by(Order.id)):
        with claim as order:
            order.total += 1
            done.append(order.id)
    with sessions() as session:
        assert sorted(done) == session.scalars(sa.select(Order.id).order_by(Order.id)).all()


def test_asyncpg_with_the_settings_of_the_page(documents: Database) -> None:
    url = sa.make_url(documents.url).set(drivername="postgresql+asyncpg")

    async def lock_often() -> None:
        unprepared = {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__",
        }
        engine = (
            create_async_engine(url)
            if documents.column == PGPOOL
            else create_async_engine(url, poolclass=NullPool, connect_args=unprepared)
        )

        async def add(times: int) -> None:
            for _ in range(times):
                async with AsyncLockingSession(engine) as session:
                    order = await session.get_one_entity(Order, 1, ForUpdate, lock_timeout=30)
                    order.total += 1
                    await session.save_changes()

        await asyncio.gather(*(add(5) for _ in range(4)))
        await engine.dispose()

    before = total(documents)
    asyncio.run(lock_often())
    assert total(documents) == before + 20
