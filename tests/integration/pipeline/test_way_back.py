"""Whoever gets the connection next gets it as the driver made it, with nothing that waits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import Note
from tests.integration.pipeline.only import ON_POSTGRESQL

pytestmark = ON_POSTGRESQL

NUMBER = sa.select(Note.number).where(Note.id == 1)


class Veto(Exception):
    """Of a listener."""


def veto_behind_a_flush(session: LockingSession) -> None:
    session.flush()
    raise Veto


def as_the_driver_made_it(connection: sa.Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.cursor_factory.__module__.startswith("psycopg"))


def number_after_the_next(engine: sa.Engine, elsewhere: sa.Engine) -> int | None:
    """Have somebody else commit over the connection."""
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
        assert as_the_driver_made_it(connection)
    with elsewhere.connect() as connection:
        return connection.scalar(NUMBER)


def vetoed(session: LockingSession) -> None:
    transaction = session.begin()
    event.listen(session, "before_commit", veto_behind_a_flush)
    session.get_one(Note, 1).number = 50
    with pytest.raises(Veto):
        transaction.commit()


def vetoed_in_the_second_flush(session: LockingSession) -> None:
    transaction = session.begin()
    note, second = session.get_one(Note, 1), session.get_one(Note, 2)

    def veto_second(*_: object) -> None:
        if second.number == 99:
            raise Veto

    def write_more(*_: object) -> None:
        second.number = 99

    event.listen(session, "before_flush", veto_second)
    event.listen(session, "after_flush_postexec", write_more)
    note.number = 50
    with pytest.raises(Veto):
        transaction.commit()


ENDS: list[Callable[[LockingSession], None]] = [
    lambda session: session.close(),
    lambda session: session.reset(),
    lambda session: session.rollback(),
]


@pytest.mark.parametrize("fails", [vetoed, vetoed_in_the_second_flush])
@pytest.mark.parametrize("end", ENDS, ids=["close", "reset", "rollback"])
def test_after_a_commit_that_a_listener_refused(
    session: LockingSession,
    engine: sa.Engine,
    elsewhere: sa.Engine,
    fails: Callable[[LockingSession], None],
    end: Callable[[LockingSession], None],
) -> None:
    fails(session)
    end(session)
    assert number_after_the_next(engine, elsewhere) == 1


def test_after_a_commit_that_the_connections_listener_refused(
    session: LockingSession, engine: sa.Engine, elsewhere: sa.Engine
) -> None:
    def veto(_: sa.Connection) -> None:
        raise Veto

    transaction = session.begin()
    session.get_one(Note, 1).number = 50
    event.listen(session.connection(), "commit", veto)
    with pytest.raises(Veto):
        transaction.commit()
    session.close()
    assert number_after_the_next(engine, elsewhere) == 1


def test_after_a_session_that_nobody_has_closed(engine: sa.Engine, elsewhere: sa.Engine) -> None:
    vetoed(LockingSession(engine, pipeline=True))
    gc.collect()
    assert number_after_the_next(engine, elsewhere) == 1


def test_after_a_session_that_needs_no_garbage_collector(engine: sa.Engine) -> None:
    gc.collect()
    gc.disable()
    try:
        with LockingSession(engine, pipeline=True) as session:
            session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
            freed = ref(session._context), ref(session.connection())
            session.save_changes()
        del session
        assert [one() for one in freed] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_write_that_fails_behind_a_veto(
    make: Sessions, engine: sa.Engine, elsewhere: sa.Engine, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    event.listen(session, "before_commit", veto_behind_a_flush)
    driver: Any = session.connection().connection.driver_connection
    session.add(Note(id=2, text="again"))
    with pytest.raises(IntegrityError):
        session.commit()
    assert driver.cursor_factory.__module__ == "psycopg"
    session.close()
    assert number_after_the_next(engine, elsewhere) == 1


@in_a_loop
async def test_under_asyncio_as_well(engine: sa.Engine, elsewhere: sa.Engine) -> None:
    async with connected(engine.url, pool_size=1, max_overflow=0) as through:
        session = AsyncLockingSession(through, pipeline=True)
        transaction = await session.begin()
        event.listen(session.sync_session, "before_commit", veto_behind_a_flush)
        (await session.get_one(Note, 1)).number = 50
        with pytest.raises(Veto):
            await transaction.commit()
        await session.close()
        async with through.begin() as connection:
            assert await connection.scalar(sa.text("SELECT 1")) == 1
            assert await connection.run_sync(as_the_driver_made_it)
    with elsewhere.connect() as observer:
        assert observer.scalar(NUMBER) == 1
