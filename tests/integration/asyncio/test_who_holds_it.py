"""An asynchronous session tells who holds what it does not get; async_lock_waits() who waits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa

import sa_doclock
from sa_doclock import AsyncLockingSession, LockNotAvailable, LockNotSupported
from sa_doclock.features import diagnosis
from tests.integration.asyncio.bridge import playing
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.asyncio.plays import FOR_UPDATE, add_ten, reads, roll_back
from tests.integration.monitoring.side import side_connections
from tests.integration.monitoring.steps import wait_until_reported
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

Player = Actor[Any]
MANY = 40
ONE_ONLY = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 2}


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_the_holder_is_reported(ann: Player, url: sa.URL) -> None:
    ann.does(playing(add_ten))
    mine = ann.connection_id()
    async with (
        connected(url, **ONE_ONLY) as engine,
        AsyncLockingSession(engine, diagnose=True) as session,
    ):
        found: list[int] = []
        for _ in range(80):  # MariaDB answers from a copy: see tests/support/waits.py
            with pytest.raises(LockNotAvailable) as caught:
                await session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=0)
            found = [one.connection_id for one in caught.value.blockers]
            if found == [mine]:
                break
            threading.Event().wait(0.12)
        assert found == [mine]
        assert f"held by connection {mine}" in str(caught.value)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_a_wait_is_reported(ann: Player, ben: Player, url: sa.URL) -> None:
    ann.does(playing(add_ten))
    queued = ben.starts(reads(FOR_UPDATE))
    wait_until_blocked(waiter=ben, holder=ann, step=queued)
    async with connected(url, **ONE_ONLY) as engine, engine.connect() as connection:
        for bind in (engine, connection):
            waits = await sa_doclock.async_lock_waits(bind)
            pairs = [
                (wait.waiter.connection_id, wait.blocker.connection_id)
                for wait in waits
                if wait.waiter.connection_id == ben.connection_id()  # the server may have others
            ]
            assert pairs == [(ben.connection_id(), ann.connection_id())]
    ann.does(playing(roll_back))
    queued.result()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_forty_tasks_that_give_up_open_one_connection(
    database: Database, ann: Player, url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARED_FOR", "PATIENCE"):  # however slow the machine is
        monkeypatch.setattr(diagnosis, name, 2 * PATIENCE)
    ann.does(playing(add_ten))
    wait_until_reported(database, ann)

    async def give_up(session: AsyncLockingSession) -> LockNotAvailable:
        with pytest.raises(LockNotAvailable) as caught:
            await session.get_entity(Order, 1, FOR_UPDATE, lock_timeout=0.1)
        return caught.value

    async with connected(url, pool_size=MANY, max_overflow=0) as engine:
        sessions = [AsyncLockingSession(engine, diagnose=True) for _ in range(MANY)]
        for session in sessions:
            await session.connection()
        for session in sessions:
            await session.rollback()
        with side_connections(engine.sync_engine, 1) as seen:
            errors = await asyncio.gather(*(give_up(session) for session in sessions))
        for session in sessions:
            await session.close()
    assert seen == ["made", "closed"]
    assert all(error.blockers for error in errors)


@pytest.mark.databases("sqlite")
@in_a_loop
async def test_sqlite_has_nobody_to_ask(url: sa.URL) -> None:
    async with connected(url) as engine:
        with pytest.raises(LockNotSupported, match="not supported on sqlite"):
            await sa_doclock.async_lock_waits(engine)
        bad: Any = engine.sync_engine
        with pytest.raises(TypeError, match="needs an AsyncEngine or an AsyncConnection"):
            await sa_doclock.async_lock_waits(bad)
