"""After many cycles of each way to lock, and of each failure, memory, files and sessions have not grown."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import create_engine, event
from sqlalchemy.exc import IntegrityError, InvalidRequestError, NoResultFound, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from sa_doclock import (
    AsyncLockingSession,
    DeadlockDetected,
    LockFailed,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockUpgradeRefused,
    UnlockedWrite,
    UnsavedChanges,
    async_claim_each,
    async_run_transaction,
    claim_each,
    lock_waits,
    run_transaction,
    with_lock,
)
from sa_doclock.core.transaction import dialect_events
from sa_doclock.tools.cli.workload import fresh_tables
from sa_doclock.tools.cli.workload.tables import NAMES, Detail, Document, fill
from tests.integration.asyncio.drivers import url_for
from tests.reliability import Reliability, Soak
from tests.reliability.leaks.footprint import (
    CONNECT_ARGS,
    DOCUMENTS,
    STATES,
    WARM_UP,
    Scene,
    Way,
    footprint,
    grown_since,
    growth,
    leak_of,
    new_engine,
    repeat,
    run_all,
)
from tests.support.actors import PATIENCE
from tests.support.databases import PIPELINED, Database

pytestmark = pytest.mark.not_databases("sqlite-journal")  # the same code, but slower

# --------------------------------------------------------------------------------------------------
# Ways for a lock, or work under it, to fail: one function is one cycle.

FOR_UPDATE = LockOptions.ForUpdate
SHARED, NO_WAIT, SNAPSHOT = LockOptions.SharedRead, LockOptions.NoWait, LockOptions.SnapshotRead
AT_ONCE = FOR_UPDATE | NO_WAIT
MISSING = 99


class Whim(Exception):
    """An error that a function of the program raises for its own reasons."""


def not_granted_at_once(scene: Scene) -> None:
    with scene.held(), scene.sessions() as session, pytest.raises(LockNotAvailable):
        session.get_entity(Document, scene.ident, AT_ONCE)


def held_by_another_past_the_limit(scene: Scene) -> None:
    with scene.held(), scene.sessions() as session, pytest.raises(LockNotAvailable):
        session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=0.001)


def held_by_another_in_a_batch(scene: Scene) -> None:
    batch = LockingSession(scene.engine, priority="batch", lock_timeout=0.001)
    with scene.held(), batch as session, pytest.raises(LockNotAvailable):
        session.get_entity(Document, scene.ident, FOR_UPDATE)


def several_held_by_another(scene: Scene) -> None:
    with scene.held(), scene.sessions() as session:
        with pytest.raises(LockNotAvailable):
            session.get_entities(Document, range(5), AT_ONCE)
        with pytest.raises(LockNotAvailable):
            session.scalars(session.entity_set(Document, AT_ONCE)).all()


def name_held_by_another(scene: Scene) -> None:
    with scene.sessions() as holder, scene.sessions() as session:
        holder.lock_key("leaks")
        with pytest.raises(LockNotAvailable):
            session.lock_key("leaks", lock_timeout=0)


def in_the_midst_of_a_transaction(scene: Scene) -> None:
    with scene.sessions() as session, session.begin():
        with scene.held(), pytest.raises(LockNotAvailable):
            session.get_entity(Document, scene.ident, AT_ONCE)
        with pytest.raises(PendingRollbackError):
            session.get_entity(Document, 0, AT_ONCE)
        session.rollback()


def on_a_connection_that_goes_on(scene: Scene) -> None:
    with LockingSession(scene.connection) as session, session.begin():
        with scene.held(), pytest.raises(LockNotAvailable):
            session.get_entity(Document, scene.ident, AT_ONCE)
        with pytest.raises(PendingRollbackError):
            session.execute(sa.select(Document))
        session.rollback()


def in_a_session_that_goes_on(scene: Scene) -> None:
    with scene.held(), pytest.raises(LockNotAvailable):
        scene.session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=0.001)


def in_a_savepoint(scene: Scene) -> None:
    with scene.sessions() as session, session.begin():
        session.scalar(sa.select(sa.literal(1)))
        with scene.held(), pytest.raises(LockNotAvailable), session.begin_nested():
            session.get_entity(Document, scene.ident, AT_ONCE)


def informed_who_holds_it(scene: Scene) -> None:
    with scene.held(), LockingSession(scene.engine, diagnose=True) as session:
        with pytest.raises(LockNotAvailable) as raised:
            session.get_entity(Document, scene.ident, AT_ONCE)
        assert bool(raised.value.blockers) is (scene.database.name != "sqlite")
        del raised


def given_up_by_run_transaction(scene: Scene) -> None:
    def lock(session: LockingSession) -> None:
        session.get_entity(Document, scene.ident, AT_ONCE)

    with scene.held(), pytest.raises(LockNotAvailable):
        run_transaction(scene.sessions, lock, attempts=2, backoff=0, retry_not_available=True)


def missing(scene: Scene) -> None:
    with scene.sessions() as session:
        assert session.get_entity(Document, MISSING, FOR_UPDATE) is None
        with pytest.raises(NoResultFound), session.locked(Document, MISSING):
            pass


def a_flush(scene: Scene) -> None:
    with scene.sessions() as session:
        document = session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        session.add(Detail(document_id=document.id, name=NAMES[0], value=1))
        with pytest.raises(IntegrityError):
            session.save_changes()
        with pytest.raises(InvalidRequestError):  # PendingRollbackError, unless COMMIT went with it
            session.get_entity(Document, scene.ident, FOR_UPDATE)


def a_failing_listener(scene: Scene) -> None:
    with scene.sessions() as session:
        event.listen(session, "lock_acquired", _raise)
        with pytest.raises(Whim):
            session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)


def a_listener_of_the_engine(scene: Scene) -> None:
    """Use a listener that fails while the limit is set; the library listens to the connection itself."""
    event.listen(scene.engine, "before_execute", _raise_at_the_lock)
    try:
        with scene.sessions() as session, pytest.raises(Whim):
            session.get_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
    finally:
        event.remove(scene.engine, "before_execute", _raise_at_the_lock)


def an_error_of_the_block(scene: Scene) -> None:
    with scene.sessions() as session:
        block = session.locked(Document, scene.ident)
        document = block.__enter__()
        document.total += 1
        assert not block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def the_block_of_a_claim(scene: Scene) -> None:
    claims = claim_each(scene.sessions, sa.select(Document), limit=2, on_error="collect")
    for claim in claims:
        with claim:
            raise Whim
    assert len(claims.report.failed) == 2


def what_was_to_follow_the_commit(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE)
        session.on_commit(_raise)
        with pytest.raises(Whim):
            session.save_changes()


def misuse(scene: Scene) -> None:
    with scene.sessions() as session:
        document = session.get_one_entity(Document, scene.ident, SHARED)
        with pytest.raises(LockUpgradeRefused):
            session.get_entity(Document, scene.ident, FOR_UPDATE)
        session.rollback()
        document.total += 1
        with pytest.raises(UnsavedChanges):
            session.get_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(UnlockedWrite):
            session.flush()
        session.rollback()
        with session.begin(), pytest.raises(LockMisuse):
            session.release_locks()


def what_cannot_be_locked(scene: Scene) -> None:
    with scene.sessions() as session, pytest.raises(LockNotSupported):
        session.scalars(session.entity_set(Document, FOR_UPDATE).distinct()).all()


def a_connection_that_is_lost(scene: Scene) -> None:
    with scene.sessions() as session:
        session.get_one_entity(Document, scene.ident, FOR_UPDATE, lock_timeout=scene.seconds)
        session.connection().invalidate()
        assert not session.held_locks


def changed_by_another_meanwhile(scene: Scene) -> None:
    """On SQLite, a read of an outdated snapshot prevents the lock."""
    if scene.database.name != "sqlite":
        return
    with scene.sessions() as session, scene.sessions() as other:
        session.connection().exec_driver_sql("BEGIN")
        session.get_one(Document, scene.ident)
        with other.locked(Document, scene.ident) as document:
            document.details[0].value += 1
            document.add_up()
        with pytest.raises(LockFailed):  # LockNotAvailable on Python 3.10
            session.get_entity(Document, scene.ident, FOR_UPDATE)


def a_deadlock(scene: Scene) -> None:
    if (
        scene.database.name == "sqlite"
    ):  # where a session waits for the file, before it holds anything
        return
    meeting = threading.Barrier(2)

    def is_victim(mine: int, theirs: int) -> bool:
        with scene.sessions() as session:
            session.get_one_entity(Document, mine, FOR_UPDATE)
            meeting.wait(PATIENCE)
            try:
                session.get_one_entity(Document, theirs, FOR_UPDATE)
            except DeadlockDetected:
                return True
            return False

    with ThreadPoolExecutor() as pool:
        assert sum(pool.map(is_victim, (0, 1), (1, 0))) == 1


def _raise(*_: object) -> None:
    raise Whim


def _raise_at_the_lock(_: object, statement: object, *__: object) -> None:
    if isinstance(statement, sa.Select) and Document.__table__ in statement.get_final_froms():
        raise Whim


FAILURES: tuple[Way, ...] = (
    *(not_granted_at_once, held_by_another_past_the_limit, several_held_by_another),
    *(name_held_by_another, in_the_midst_of_a_transaction, in_a_savepoint),
    *(on_a_connection_that_goes_on, in_a_session_that_goes_on),
    *(given_up_by_run_transaction, missing, a_flush, a_failing_listener, a_listener_of_the_engine),
    *(an_error_of_the_block, the_block_of_a_claim, what_was_to_follow_the_commit, misuse),
    *(what_cannot_be_locked, changed_by_another_meanwhile),
)

#: Ways that wait by nature, or make a new connection each time.
RARE_FAILURES: tuple[Way, ...] = (
    *(held_by_another_in_a_batch, informed_who_holds_it, a_connection_that_is_lost, a_deadlock),
)


# --------------------------------------------------------------------------------------------------
# Ways to take a lock and release it: one function is one cycle.


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
        # psycopg keeps 128 statements of the process; on PostgreSQL each key is another statement.
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
    if scene.database.name == "sqlite":  # which cannot list waits
        return
    assert not lock_waits(scene.engine)


WAYS: tuple[Way, ...] = (
    *(change_and_save, read_and_release, read_a_snapshot, lock_at_once_and_close),
    *(a_whole_document, several, a_set, a_statement, a_block, a_name),
    *(a_limit, a_limit_of_the_session, a_batch, savepoints, a_function, claims),
    *(claims_in_batches, claims_given_back, a_listener, a_lent_connection),
    *(a_connection_that_goes_on, a_session_that_goes_on, an_update_of_what_is_held),
)

#: Ways that make a new connection each time, or collect garbage.
RARE_WAYS: tuple[Way, ...] = (
    *(a_session_that_nobody_closes, an_engine_of_its_own, a_look_at_who_waits),
)


# --------------------------------------------------------------------------------------------------
# The asyncio ways: one coroutine function is one cycle.


@dataclass
class AsyncScene(Scene):
    """The same, with async sessions and the loop that runs them."""

    async_engine: AsyncEngine | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def async_sessions(self) -> async_sessionmaker[AsyncLockingSession]:
        return async_sessionmaker(self.async_engine, class_=AsyncLockingSession)

    def run(self, awaitable: Awaitable[Any]) -> None:
        """Run the coroutine to its end."""
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
    """On SQLite it would wait in the driver's thread, which cannot be cancelled."""
    if scene.database.name == "sqlite":
        return
    async with scene.async_sessions() as holder:
        await holder.get_one_entity(Document, scene.ident, FOR_UPDATE)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(a_block_async(scene), 0.02)
    # Timing decides whether the connection is discarded: both exist again, with the same statements.
    await held_by_another(scene)


def as_way(way: AsyncWay) -> Way:
    """Make a cycle that ends when the coroutine ends."""

    def run(scene: Scene) -> None:
        assert isinstance(scene, AsyncScene)
        scene.run(way(scene))

    run.__name__ = getattr(way, "__name__", "")
    return run


ASYNC_WAYS = tuple(
    map(as_way, (change_and_save_async, a_block_async, a_set_async, claims_async, a_function_async))
)
ASYNC_FAILURES = tuple(map(as_way, (held_by_another, the_block)))

#: For each cancelled statement, asyncpg keeps 1.5 kB outside Python's view, even with SQLAlchemy's
#: own AsyncSession.
RARE_ASYNC_FAILURES = (as_way(a_waiter_that_is_cancelled),)


# --------------------------------------------------------------------------------------------------
# Runs each way repeatedly.


@pytest.fixture
def _unheard() -> Iterator[None]:
    """Keep the library's log records from pytest, which would store them all."""
    log = logging.getLogger("sa_doclock")

    def pass_nothing_on(_: logging.LogRecord) -> bool:
        return False

    log.addFilter(pass_nothing_on)
    yield
    log.removeFilter(pass_nothing_on)


@pytest.fixture
def scene(database: Database, _unheard: None) -> Iterator[Scene]:
    """Fill the documents, and ignore from now on all existing objects."""
    compiled: dict[object, object] = {}
    made = new_engine(database)
    engine = made.execution_options(compiled_cache=compiled)
    with fresh_tables(engine):
        fill(engine, STATES)
        gc.collect()
        gc.freeze()  # neither count nor search the objects that other tests left
        scene = Scene(database, engine, compiled)
        footprint(scene)  # which has caches of its own
        yield scene
        scene.close()
    made.dispose()


# --------------------------------------------------------------------------------------------------
# The tests find deliberate leaks: an object, a number, a listener, a connection, a lock.

CYCLES = 20

Leak = Callable[[Scene], Any]


class Kept:
    """One such object for every cycle."""


def an_object(_: Scene) -> Any:
    return Kept()


def leaves_a_listener(scene: Scene) -> Any:
    def hear(*_: object) -> None: ...

    event.listen(scene.engine, "begin", hear)
    return hear


def keeps_a_statement(scene: Scene) -> Any:
    with scene.sessions() as session:
        number = scene.number
        session.get_one(Document, 0, execution_options={"number": number})
        session.scalars(session.entity_set(Document).where(Document.id != number)).all()
        columns = [Document.id.label(f"label_{number}")]
        return session.execute(session.entity_set(Document).with_only_columns(*columns)).all()


def a_member_of_a_set(_: Scene) -> Any:
    dialect = create_engine("sqlite://").dialect
    dialect_events._listened.add(dialect)
    return dialect


def _counts(scene: Scene, leak: Leak) -> dict[str, int]:
    kept: list[Any] = []

    def cycle(scene: Scene) -> None:
        read_and_release(scene)
        kept.append(leak(scene))

    return leak_of(scene, cycle, CYCLES)


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize(
    ("leak", "name"),
    [
        (an_object, "object Kept"),
        (leaves_a_listener, "listeners"),
        (keeps_a_statement, "compiled statements"),
        (a_member_of_a_set, "in sa_doclock.core.transaction.dialect_events._listened"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_one_for_each_cycle(scene: Scene, leak: Leak, name: str) -> None:
    assert _counts(scene, leak)[name] == CYCLES


@pytest.mark.databases("postgresql", "sqlite")
def test_what_the_garbage_collector_does_not_know(scene: Scene) -> None:
    numbers, kept = itertools.count(10**9), []

    def cycle(_: Scene) -> None:
        kept.append(next(numbers))

    assert leak_of(scene, cycle, 30_000)["blocks"] > 20_000


@pytest.mark.databases("postgresql", "sqlite")
def test_a_connection_that_is_kept(scene: Scene) -> None:
    before = footprint(scene)
    kept = [scene.engine.connect() for _ in range(3)]
    found = growth(before, footprint(scene))
    assert found["connections checked out"] == 3
    assert found["sessions"] >= 2  # one was in the pool
    assert found["open files"] >= 2
    for connection in kept:
        connection.close()


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize("lock", [LockOptions.ForUpdate, LockOptions.SharedRead])
def test_a_lock_that_is_kept(scene: Scene, lock: LockOptions) -> None:
    repeat(scene, read_and_release, WARM_UP)
    repeat(scene, change_and_save, WARM_UP)
    before = footprint(scene)
    with scene.sessions() as session:
        kept = session.get_one_entity(Document, 1, lock)
        assert growth(before, footprint(scene))["locks"] >= 1
        assert kept.id == 1
    del session, kept
    assert not grown_since(scene, before)


@pytest.mark.databases("postgresql", "sqlite")
def test_memory_outside_of_python(scene: Scene) -> None:
    before = footprint(scene)
    kept = bytearray(64 * 1024 * 1024)  # objects of other tests may be freed meanwhile
    kept[::4096] = b"x" * len(kept[::4096])  # touched, so that it is really allocated
    assert growth(before, footprint(scene))["kB of memory"] > 32_000
    assert kept


# --------------------------------------------------------------------------------------------------
# Repeated cycles leak nothing: no object, listener, connection or lock.


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.slow
def test_locking_and_letting_go_leaves_nothing(
    scene: Scene, soak: Soak, reliability: Reliability
) -> None:
    row = reliability.row("locks taken and let go", scene.database.column)
    run_all(scene, soak, row, WAYS, soak.times(short=15 * len(WAYS), long=100_000))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.slow
def test_failing_leaves_nothing(scene: Scene, soak: Soak, reliability: Reliability) -> None:
    row = reliability.row("locks failed", scene.database.column)
    run_all(scene, soak, row, FAILURES, soak.times(short=15 * len(FAILURES), long=10_000))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.slow
def test_what_takes_long_leaves_nothing(scene: Scene, soak: Soak, reliability: Reliability) -> None:
    ways = (*RARE_WAYS, *RARE_FAILURES)
    row = reliability.row("engines made, connections lost, deadlocks", scene.database.column)
    run_all(scene, soak, row, ways, soak.times(short=12, long=300) * len(ways))


# --------------------------------------------------------------------------------------------------
# Asyncio cycles leak nothing either, with each driver.

WAYS_ASYNC = (*ASYNC_WAYS, *ASYNC_FAILURES)


@pytest.fixture
def async_scene(scene: Scene, driver: str) -> Iterator[AsyncScene]:
    """Open the same documents with asyncio."""
    if scene.database.column == PIPELINED and driver != "psycopg":
        pytest.skip(f"pipeline=True is not for {driver}")
    connect_args = CONNECT_ARGS["sqlite"] if driver == "aiosqlite" else {}
    made = create_async_engine(
        url_for(scene.database, driver),
        connect_args=connect_args,
        # As many connections as a way needs, whichever of them a cancelled waiter discards:
        # otherwise the next ways take turns with the remaining connections, and asyncpg keeps the
        # prepared statements of each.
        pool_use_lifo=True,
    )
    engine = made.execution_options(compiled_cache=scene.compiled)
    loop = asyncio.new_event_loop()
    yield AsyncScene(scene.database, engine.sync_engine, scene.compiled, 0, engine, loop)
    loop.run_until_complete(made.dispose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture
def cycles_leave_nothing(
    async_scene: AsyncScene, soak: Soak, reliability: Reliability
) -> Callable[[], None]:
    def run() -> None:
        row = reliability.row("locks taken and let go, asyncio", async_scene.database.column)
        run_all(async_scene, soak, row, RARE_ASYNC_FAILURES, soak.times(short=12, long=300))
        run_all(
            async_scene, soak, row, WAYS_ASYNC, soak.times(short=12, long=1_000) * len(WAYS_ASYNC)
        )

    return run


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.slow
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_on_postgresql(cycles_leave_nothing: Callable[[], None]) -> None:
    cycles_leave_nothing()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.slow
@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("driver", ["aiosqlite"])
def test_on_sqlite(cycles_leave_nothing: Callable[[], None]) -> None:
    cycles_leave_nothing()
