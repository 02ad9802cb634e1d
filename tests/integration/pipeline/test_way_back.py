"""The next user of a connection gets it as the driver made it, with no pending statements."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import pytest
import sqlalchemy as sa
from psycopg.pq import Trace
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions
from tests.integration.asyncio.drivers import connected, in_a_loop
from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Bill, Item, Note
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = ON_POSTGRESQL


NUMBER = sa.select(Note.number).where(Note.id == 1)


class Veto(Exception):
    """A listener's error."""


def veto_behind_a_flush(session: LockingSession) -> None:
    session.flush()
    raise Veto


def as_the_driver_made_it(connection: sa.Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.cursor_factory.__module__.startswith("psycopg"))


def number_after_the_next(engine: sa.Engine, elsewhere: sa.Engine) -> int | None:
    """Let another session commit over the connection."""
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


# --------------------------------------------------------------------------------------------------
# A lent Connection commits by itself, however the program passed it to the session.


def by_bind(lent: sa.Connection) -> LockingSession:
    return LockingSession(lent, pipeline=True)


def by_binds(lent: sa.Connection) -> LockingSession:
    return LockingSession(binds={Note: lent}, pipeline=True)


def by_bind_mapper(lent: sa.Connection) -> LockingSession:
    session = LockingSession(lent.engine, pipeline=True)
    session.bind_mapper(Note, lent)
    return session


def by_bind_table(lent: sa.Connection) -> LockingSession:
    session = LockingSession(pipeline=True)
    session.bind_table(Note.__table__, lent)  # type: ignore[arg-type]
    return session


def by_get_bind(lent: sa.Connection) -> LockingSession:
    class Routing(LockingSession):
        def get_bind(self, *_: Any, **__: Any) -> sa.Connection:
            return lent

    return Routing(pipeline=True)


def by_an_argument(lent: sa.Connection) -> LockingSession:
    session = LockingSession(lent.engine, pipeline=True)
    session.connection(bind_arguments={"bind": lent})
    return session


WAYS = [by_bind, by_binds, by_bind_mapper, by_bind_table, by_get_bind, by_an_argument]


def as_the_driver_made_it_lent(connection: sa.Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.cursor_factory.__module__ == "psycopg")


@pytest.mark.parametrize("in_savepoint", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_waits_on_it(
    engine: sa.Engine,
    elsewhere: sa.Engine,
    way: Callable[[sa.Connection], LockingSession],
    in_savepoint: bool,
) -> None:
    with engine.connect() as lent:
        transaction = lent.begin()
        with way(lent) as session:
            if in_savepoint:
                session.begin_nested()
            session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
            session.commit()
            assert as_the_driver_made_it_lent(lent)
            assert transaction.is_active
            assert lent.scalar(NUMBER) == 50
        transaction.rollback()
    with elsewhere.connect() as connection:
        assert connection.scalar(NUMBER) == 1


@pytest.mark.parametrize("way", WAYS)
def test_who_lent_it_gets_the_counts_of_his_own_writes(
    engine: sa.Engine, way: Callable[[sa.Connection], LockingSession]
) -> None:
    with engine.connect() as lent, lent.begin():
        with way(lent) as session:
            session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
            session.commit()
        with Session(lent, join_transaction_mode="create_savepoint") as plain:
            note = plain.get_one(Note, 2)
            lent.execute(sa.delete(Note).where(Note.id == 2))
            note.number = 60
            with pytest.raises(StaleDataError):
                plain.flush()


# --------------------------------------------------------------------------------------------------
# A pipeline ends with Sync: the server's idle-transaction timer starts there.

Sent = list[str]


@pytest.fixture
def session_factory(bills: Database) -> sessionmaker[LockingSession]:
    return sessionmaker(bills.engine(), class_=LockingSession)


@contextmanager
def traced(session: LockingSession) -> Iterator[Sent]:
    """Append the names of the messages sent in this block, as libpq reports them."""
    driver: Any = session.connection().connection.driver_connection
    sent: Sent = []
    with tempfile.TemporaryFile(mode="w+") as file:
        driver.pgconn.trace(file.fileno())
        driver.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield sent
        finally:
            driver.pgconn.untrace()
            file.seek(0)
            # F: from the frontend.  A statement with several lines is traced on several.
            sent += [line.split("\t")[2].strip() for line in file if line.startswith("F\t")]


def lock(session: LockingSession, **how: Any) -> None:
    session.get_one_entity(Bill, 1, LockOptions.ForUpdate, **how)


def lock_and_change_many(session: LockingSession) -> None:
    session.lock_key("another")
    session.execute(sa.update(Item), [{"id": -1, "value": 1}, {"id": -2, "value": 2}])


def hold_all(session: LockingSession) -> None:
    lock(session)
    session.lock_key("key")
    session.execute(sa.update(Item).values(value=0))


#: By name: a session's options, and an action that waits: no answer has arrived when Sync is sent.
WAYS_LAST_MESSAGE: dict[str, tuple[dict[str, Any], Callable[[LockingSession], object]]] = {
    "lock_timeout": ({}, partial(lock, lock_timeout=30)),
    "key": ({}, lambda session: session.lock_key("key", lock_timeout=30)),
    "hold_limit": ({"hold_limit": 600}, lock),
    "hold_limit, many rows": ({"hold_limit": 600}, lock_and_change_many),
    "pipeline": ({"pipeline": True}, lock),
}


@pytest.mark.parametrize("way", WAYS_LAST_MESSAGE)
def test_sync_is_the_last_message(
    alice: Actor[LockingSession], bob: Actor[LockingSession], way: str
) -> None:
    options, action = WAYS_LAST_MESSAGE[way]

    def take(session: LockingSession) -> Sent:
        with LockingSession(session.get_bind(), **options) as own:
            with traced(own) as sent:
                action(own)
            return sent

    alice.does(hold_all)
    waiting = bob.starts(take)
    wait_until_blocked(waiter=bob, holder=alice, step=waiting)
    alice.does(LockingSession.rollback)
    sent = waiting.result()
    assert sent[-1] == "Sync"
    assert "Flush" not in sent
