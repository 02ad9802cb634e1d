"""The ways to take a lock and let it go, also of asyncio: one function is one cycle."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    async_claim_each,
    async_run_transaction,
    claim_each,
    lock_waits,
    run_transaction,
    with_lock,
)
from sa_doclock.tools.cli.workload.tables import Detail, Document
from tests.reliability.leaks.footprint import DOCUMENTS, WARM_UP, Scene, Way, new_engine

SHARED, NO_WAIT, SNAPSHOT = LockOptions.SharedRead, LockOptions.NoWait, LockOptions.SnapshotRead


# --------------------------------------------------------------------------------------------------
# The ways to take a lock and let it go: one function is one cycle.

FOR_UPDATE = LockOptions.ForUpdate


def change_and_save(scene: Scene) -> None:
    with scene.sessions() as session:
        document = session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        document.details[0].value += 1
        document.add_up()
        session.save_changes()


def read_and_release(scene: Scene) -> None:
    with scene.sessions() as session:
        assert session.get_one_entity(Document, scene.ident, SHARED).details
        session.release_locks()


def read_a_snapshot(scene: Scene) -> None:
    with scene.sessions() as session:
        assert session.get_document(Document, scene.ident, SNAPSHOT)
        session.rollback()


def lock_at_once_and_close(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE | NO_WAIT)


def a_whole_document(scene: Scene) -> None:
    with scene.sessions() as session:
        document = session.get_document(Document, scene.ident, FOR_UPDATE)
        assert document is not None
        document.total = 0
        document.add_up()
        session.commit()


def several(scene: Scene) -> None:
    idents = range(scene.number % DOCUMENTS + 1)
    with scene.sessions() as session:
        assert session.get_entities(Document, idents, FOR_UPDATE)
        assert session.get_documents(Document, idents, FOR_UPDATE)


def a_set(scene: Scene) -> None:
    with scene.sessions() as session:
        wanted = session.entity_set(Document, FOR_UPDATE).where(Document.id <= scene.ident)
        assert session.scalars(wanted).all()


def a_statement(scene: Scene) -> None:
    statement = with_lock(sa.select(Document).where(Document.id == scene.ident), SHARED)
    with scene.sessions() as session:
        assert session.scalars(statement).one()


def a_block(scene: Scene) -> None:
    with scene.sessions() as session:
        with session.locked(Document, scene.ident) as document:
            document.details[0].value += 1
            document.add_up()
            with session.locked(Document, scene.ident):
                pass
        with session.locked(Document, scene.ident, SHARED):
            pass


def a_name(scene: Scene) -> None:
    with scene.sessions() as session:
        # psycopg keeps 128 statements of the process, of which each key on PostgreSQL is one.
        session.lock_key(f"name {scene.number % WARM_UP}")
        session.lock_key("all of them", shared=True, lock_timeout=scene.seconds)


def a_limit(scene: Scene) -> None:
    seconds = scene.seconds
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=seconds)
        session.get_entities(Document, (0, 1, 2), FOR_UPDATE, lock_timeout=seconds)
        session.scalars(session.entity_set(Document, FOR_UPDATE, lock_timeout=seconds)).all()


def a_limit_of_the_session(scene: Scene) -> None:
    with LockingSession(scene.engine, lock_timeout=scene.seconds) as session:
        session.get_one_entity(Document, scene.ident, SHARED)


def a_batch(scene: Scene) -> None:
    with LockingSession(scene.engine, priority="batch", lock_timeout=scene.seconds) as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        session.commit()


def savepoints(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        with session.begin_nested():
            session.get_one_entity(Document, (scene.ident + 1) % DOCUMENTS, FOR_UPDATE)
        session.begin_nested().rollback()


def a_function(scene: Scene) -> None:
    done: list[int] = []

    def add_up(session: LockingSession) -> None:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE).add_up()
        session.on_commit(lambda: done.append(scene.number))

    run_transaction(scene.sessions, add_up)
    assert done == [scene.number]


def claims(scene: Scene) -> None:
    wanted = sa.select(Document).where(Document.id >= scene.ident)
    for claim in claim_each(scene.sessions, wanted, limit=2, lock_timeout=scene.seconds):
        with claim as document:
            document.add_up()


def claims_in_batches(scene: Scene) -> None:
    wanted = sa.select(Document).order_by(Document.total)
    for claim in claim_each(scene.sessions, wanted, batch=2, lock_timeout=scene.seconds):
        with claim:
            pass


def claims_given_back(scene: Scene) -> None:
    for _claim in claim_each(scene.sessions, sa.select(Document)):
        break


def a_listener(scene: Scene) -> None:
    heard: list[object] = []
    with scene.sessions() as session:
        event.listen(session, "lock_acquired", lambda *reported: heard.append(reported))
        event.listen(session, "locks_released", lambda *reported: heard.append(reported))
        session.get_one_entity(Document, scene.ident, FOR_UPDATE)
    assert len(heard) == 2


def a_lent_connection(scene: Scene) -> None:
    with scene.engine.connect() as connection, LockingSession(connection) as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
        session.save_changes()


def a_connection_that_goes_on(scene: Scene) -> None:
    with LockingSession(scene.connection) as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
        session.save_changes()


def a_session_that_goes_on(scene: Scene) -> None:
    session = scene.session
    session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
    session.save_changes()
    session.scalars(session.entity_set(Document, SHARED, lock_timeout=scene.seconds)).all()
    session.release_locks()


def an_update_of_what_is_held(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        theirs = Detail.document_id == scene.ident
        session.execute(sa.update(Detail).where(theirs).values(value=scene.ident))
        session.rollback()
        with session.unguarded():
            session.execute(sa.update(Detail).where(theirs).values(value=scene.ident))


def a_session_that_nobody_closes(scene: Scene) -> None:
    session = scene.sessions()
    session.get_one_entity(Document, scene.ident, FOR_UPDATE)
    del session
    gc.collect()


def an_engine_of_its_own(scene: Scene) -> None:
    engine = new_engine(scene.database)
    with LockingSession(engine) as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
        session.lock_key("an engine")
        session.save_changes()
    engine.dispose()


def a_look_at_who_waits(scene: Scene) -> None:
    if scene.database.name == "sqlite":  # where nobody can say
        return
    assert not lock_waits(scene.engine)


WAYS: tuple[Way, ...] = (
    *(change_and_save, read_and_release, read_a_snapshot, lock_at_once_and_close),
    *(a_whole_document, several, a_set, a_statement, a_block, a_name),
    *(a_limit, a_limit_of_the_session, a_batch, savepoints, a_function, claims),
    *(claims_in_batches, claims_given_back, a_listener, a_lent_connection),
    *(a_connection_that_goes_on, a_session_that_goes_on, an_update_of_what_is_held),
)

#: Which make a new connection each time, or search for garbage.
RARE_WAYS: tuple[Way, ...] = (
    *(a_session_that_nobody_closes, an_engine_of_its_own, a_look_at_who_waits),
)


# --------------------------------------------------------------------------------------------------
# The ways of asyncio: one coroutine function is one cycle.


@dataclass
class AsyncScene(Scene):
    """The same, with sessions for asyncio and the loop that they run in."""

    async_engine: AsyncEngine | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def async_sessions(self) -> async_sessionmaker[AsyncLockingSession]:
        """Return the factory of the sessions."""
        return async_sessionmaker(self.async_engine, class_=AsyncLockingSession)

    def run(self, awaitable: Awaitable[Any]) -> None:
        """Run it to its end."""
        assert self.loop is not None

        async def to_its_end() -> None:
            await awaitable

        self.loop.run_until_complete(to_its_end())


AsyncWay = Callable[[AsyncScene], Awaitable[None]]


async def change_and_save_async(scene: AsyncScene) -> None:
    async with scene.async_sessions() as session:
        document = await session.get_document(Document, scene.ident, FOR_UPDATE)
        assert document is not None
        document.details[0].value += 1
        document.add_up()
        await session.save_changes()


async def a_block_async(scene: AsyncScene) -> None:
    async with (
        scene.async_sessions() as session,
        session.locked(Document, scene.ident, lock_timeout=scene.seconds) as document,
    ):
        document.total += 0


async def a_set_async(scene: AsyncScene) -> None:
    async with scene.async_sessions() as session:
        await session.lock_key("leaks")
        await session.get_entities(Document, (0, 1), SHARED)
        wanted = session.entity_set(Document, FOR_UPDATE).where(Document.id > 1)
        assert (await session.scalars(wanted)).all()


async def claims_async(scene: AsyncScene) -> None:
    wanted = sa.select(Document).where(Document.id >= scene.ident)
    async for claim in async_claim_each(scene.async_sessions, wanted, limit=2):
        async with claim as document:
            document.total += 0


async def a_function_async(scene: AsyncScene) -> None:
    async def lock(session: AsyncLockingSession) -> None:
        await session.get_one_entity(Document, scene.ident, FOR_UPDATE)

    await async_run_transaction(scene.async_sessions, lock)


async def held_by_another(scene: AsyncScene) -> None:
    async with scene.async_sessions() as holder, scene.async_sessions() as session:
        await holder.get_one_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(LockNotAvailable):
            await session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=0.001)


async def the_block(scene: AsyncScene) -> None:
    with pytest.raises(LookupError):
        async with scene.async_sessions() as session, session.locked(Document, scene.ident):
            raise LookupError


async def a_waiter_that_is_cancelled(scene: AsyncScene) -> None:
    """On SQLite it would wait in the driver's thread, which nobody can cancel."""
    if scene.database.name == "sqlite":
        return
    async with scene.async_sessions() as holder:
        await holder.get_one_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(a_block_async(scene), 0.02)
    # It depends on the moment whether the connection is given up: both are there again, with the same statements.
    await held_by_another(scene)


def as_way(way: AsyncWay) -> Way:
    """Make a cycle of it that ends when the coroutine has."""

    def run(scene: Scene) -> None:
        assert isinstance(scene, AsyncScene)
        scene.run(way(scene))

    run.__name__ = getattr(way, "__name__", "")
    return run


ASYNC_WAYS = tuple(
    map(as_way, (change_and_save_async, a_block_async, a_set_async, claims_async, a_function_async))
)
ASYNC_FAILURES = tuple(map(as_way, (held_by_another, the_block)))

#: asyncpg keeps 1.5 kB, which Python knows nothing of, for each statement that it cancels: so it
#: does for an AsyncSession of SQLAlchemy's own.
RARE_ASYNC_FAILURES = (as_way(a_waiter_that_is_cancelled),)
