"""SQLite: a file opened without locks, where every connection may write at once."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
)
from sa_doclock import LockOptions as Lock
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order

pytestmark = [pytest.mark.each_value, pytest.mark.databases("sqlite")]


Make = Callable[[str], sa.Engine]

TAKES: dict[str, Callable[[LockingSession], Any]] = {
    "ForUpdate": lambda session: session.get_entity(Order, 1, Lock.ForUpdate),
    "ForUpdate | NoWait": lambda session: session.get_entity(
        Order, 1, Lock.ForUpdate | Lock.NoWait
    ),
    "entity_set": lambda session: session.scalars(session.entity_set(Order, Lock.ForUpdate)).all(),
    "with_for_update": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "of a table": lambda session: session.execute(
        sa.select(Order.__table__).with_for_update()
    ).all(),
    "lock_key": lambda session: session.lock_key("a"),
    "SharedRead": lambda session: session.get_entity(Order, 1, Lock.SharedRead),
    "SnapshotRead": lambda session: session.get_entity(Order, 1, Lock.SnapshotRead),
}
UNLOCKED = ["nolock=1", "vfs=unix-none"]
LOCKED = ["vfs=unix-dotfile", "mode=rw", "cache=private"]


BY_URL = "sqlite{}:///file:{}?{}&uri=true"


def _by_url(path: str, parameters: str) -> sa.Engine:
    return sa.create_engine(BY_URL.format("", path, parameters))


def _by_creator(path: str, parameters: str) -> sa.Engine:
    uri = f"file:{path}?{parameters}"
    return sa.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(uri, uri=True, check_same_thread=False),
        poolclass=sa.QueuePool,
    )


def _one_connection(path: str, parameters: str) -> sa.Engine:
    return sa.create_engine(BY_URL.format("", path, parameters), pool_size=1, max_overflow=0)


def _path(documents: Database) -> str:
    """Return the file's path; WAL needs shared memory, and does not open it without locks."""
    with documents.observer().connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = DELETE")
    return str(Path(sa.make_url(documents.url).database or "").resolve())


@pytest.fixture(params=[_by_url, _by_creator, _one_connection])
def opened(documents: Database, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Return a maker of engines for the test's database, with these parameters."""
    path = _path(documents)
    made: list[sa.Engine] = []

    def make(parameters: str) -> sa.Engine:
        made.append(request.param(path, parameters))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("parameters", UNLOCKED)
def test_it_is_refused(
    opened: Make, parameters: str, take: Callable[[LockingSession], Any]
) -> None:
    with LockingSession(opened(parameters)) as session:
        for _ in range(2):
            with pytest.raises(LockNotSupported, match="without locks"):
                take(session)
            session.rollback()
        assert session.get_one(Customer, 1).id == 1  # a plain read


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
@pytest.mark.parametrize("parameters", UNLOCKED)
def test_so_is_a_lock_behind_a_read_or_a_write(opened: Make, parameters: str) -> None:
    engine = opened(parameters)
    for statement in (sa.select(Customer), sa.update(Customer).values(name="Zoe")):
        with LockingSession(engine) as session:
            session.execute(statement)
            with pytest.raises(LockNotSupported, match="without locks"):
                session.get_entity(Order, 1, Lock.ForUpdate)


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
@pytest.mark.parametrize("parameters", LOCKED)
def test_others_are_not(
    opened: Make, parameters: str, take: Callable[[LockingSession], Any]
) -> None:
    with LockingSession(opened(parameters)) as session:
        take(session)
        session.commit()
        take(session)


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
@pytest.mark.parametrize("parameters", LOCKED)
def test_others_exclude(opened: Make, parameters: str) -> None:
    engine = opened(parameters)
    with LockingSession(engine) as session, LockingSession(opened(parameters)) as other:
        session.get_entity(Order, 1, Lock.ForUpdate)
        with pytest.raises(LockNotAvailable):
            other.get_entity(Order, 1, Lock.ForUpdate | Lock.NoWait)


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
def test_a_writer_that_is_at_work_is_no_lock_that_is_missing(
    opened: Make, documents: Database
) -> None:
    engine = opened("mode=rw")
    with documents.observer().connect() as writer:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        with LockingSession(engine) as session, pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, Lock.ForUpdate | Lock.NoWait)
        writer.exec_driver_sql("ROLLBACK")
    with LockingSession(engine) as session:
        assert session.get_one_entity(Order, 1, Lock.ForUpdate).id == 1


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
def test_a_file_that_is_opened_read_only_is_read(opened: Make) -> None:
    with LockingSession(opened("mode=ro")) as session:
        assert session.get_one_entity(Order, 1, Lock.SnapshotRead).id == 1


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_file_that_is_called_immutable_is_refused(
    documents: Database, take: Callable[[LockingSession], Any]
) -> None:
    engine = _by_url(_path(documents), "immutable=1")
    with LockingSession(engine) as session, pytest.raises(LockNotSupported, match="without locks"):
        take(session)
    engine.dispose()


@pytest.mark.skipif(sys.platform == "win32", reason="the VFS are those of Unix")
def test_it_is_refused_by_asyncio(documents: Database) -> None:
    async def take() -> None:
        engine = create_async_engine(BY_URL.format("+aiosqlite", _path(documents), "nolock=1"))
        async with AsyncLockingSession(engine) as session:
            with pytest.raises(LockNotSupported, match="without locks"):
                await session.get_entity(Order, 1, Lock.ForUpdate)
        await engine.dispose()

    asyncio.run(take())


# --------------------------------------------------------------------------------------------------
# A SQLite file opened read-only: BEGIN IMMEDIATE can succeed there, and locks nothing.

FOR_UPDATE = sa.select(Order.id).with_for_update()
LOCKS: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda session: session.get_entity(Order, 1, lock=LockOptions.ForUpdate),
    "of a class": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "of keys": lambda session: session.execute(FOR_UPDATE).all(),
    "within": lambda session: session.scalars(sa.select(Line).where(Line.id.in_(FOR_UPDATE))).all(),
    "of the connection": lambda session: session.connection().execute(FOR_UPDATE).all(),
}


@pytest.fixture(params=["mode=ro", "creator", "do_connect", "query_only"])
def reader(request: pytest.FixtureRequest, engine: sa.Engine) -> Iterator[LockingSession]:
    file = f"file:{engine.url.database}?mode=ro"
    if request.param == "mode=ro":
        replica = sa.create_engine(f"sqlite:///{file}&uri=true")
    elif request.param == "creator":  # the URL does not show it
        replica = sa.create_engine(engine.url, creator=lambda: sqlite3.connect(file, uri=True))
    elif request.param == "do_connect":
        replica = sa.create_engine(engine.url)
        sa.event.listen(replica, "do_connect", lambda *_: sqlite3.connect(file, uri=True))
    else:
        replica = sa.create_engine(engine.url)
        sa.event.listen(replica, "connect", lambda one, _: one.execute("PRAGMA query_only = 1"))
    with LockingSession(replica) as session:
        yield session
    replica.dispose()


@pytest.mark.parametrize("opened", [False, True], ids=["begins", "joins"])
@pytest.mark.parametrize("take", LOCKS.values(), ids=LOCKS)
def test_no_lock_can_be_taken(
    reader: LockingSession, take: Callable[[LockingSession], Any], opened: bool
) -> None:
    if opened:
        reader.execute(sa.text("BEGIN"))
    total = reader.scalar(sa.select(Order.total).where(Order.id == 1))
    with pytest.raises(LockNotSupported, match="opened read-only"):
        take(reader)
    assert not reader.held_locks
    reader.rollback()
    assert reader.scalar(sa.select(Order.total).where(Order.id == 1)) == total


def test_a_plain_session_reads_it(reader: LockingSession) -> None:
    with Session(reader.get_bind()) as plain:
        assert plain.scalars(FOR_UPDATE).all()


def test_the_same_file_is_locked_by_others(reader: LockingSession, session: LockingSession) -> None:
    assert reader.scalar(sa.select(Order.id).where(Order.id == 1))
    assert session.get_entity(Order, 1, lock=LockOptions.ForUpdate)
