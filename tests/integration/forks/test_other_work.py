"""A process forks during work other than the lock of a single session.

Each case is a function that forks; a process of its own runs it: ``main(URL, CASE...)``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from sa_doclock import (
    AsyncLockingSession,
    DocumentGate,
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    checkout_table,
    claim_each,
    document,
    lease_each,
)
from sa_doclock.opentelemetry import instrument, uninstrument
from tests.support.databases import Database
from tests.support.models import Customer, Order

ForUpdate = LockOptions.ForUpdate
NOWAIT = ForUpdate | LockOptions.NoWait
Child = Callable[[], object]
ONE = sa.text("SELECT 1")


class Base(DeclarativeBase):
    pass


@document(checkout=True)
class Job(Base):
    __tablename__ = "fk_job"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[int]


CHECKOUTS = checkout_table(Base.metadata, "fk_checkouts")


def in_child(*children: Child) -> None:
    """Run these in a fork, and leave it through all enclosing blocks; fail if one fails."""
    process = os.fork()
    if not process:
        for child in children:
            child()
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 0, status


def refused(use: Child) -> None:
    with pytest.raises(LockMisuse, match=f"process {os.getppid()}\\b"):
        use()


def is_free(engine: sa.Engine, ident: int = 1) -> bool:
    with LockingSession(engine) as session:
        try:
            session.get_entity(Order, ident, NOWAIT)
        except LockNotAvailable:
            return False
        return True


def named_lock(engine: sa.Engine) -> None:
    """The server grants the name to no other session while the parent holds it."""
    with LockingSession(engine) as session:
        session.lock_key("a name")
        in_child(lambda: refused(lambda: session.lock_key("a name")), session.close)
        with LockingSession(engine) as other, pytest.raises(LockNotAvailable):
            other.lock_key("a name", lock_timeout=0)
        session.commit()
    with LockingSession(engine) as other:
        other.lock_key("a name", lock_timeout=0)


def without_lock(engine: sa.Engine) -> None:
    """The flush before the fork is saved, even without a lock."""
    with LockingSession(engine) as session:
        session.add(Customer(id=4711, name="new"))
        session.flush()
        in_child(lambda: refused(session.commit), session.rollback)
        session.commit()
        assert session.get_one(Customer, 4711).name == "new"


def savepoint(engine: sa.Engine) -> None:
    with LockingSession(engine) as session, session.begin():
        session.get_one_entity(Order, 2, ForUpdate)
        with session.begin_nested():
            session.get_one_entity(Order, 1, ForUpdate).total = 77
            session.flush()
            in_child(lambda: refused(session.begin_nested))
    with LockingSession(engine) as session:
        assert session.get_one(Order, 1).total == 77


def lent(engine: sa.Engine) -> None:
    """A Connection lent by the program is refused too, until its lender rolls back."""
    with engine.connect() as connection, connection.begin():
        connection.execute(sa.update(Order).where(Order.id == 2).values(total=88))
        session = LockingSession(connection)
        session.get_one_entity(Order, 1, ForUpdate)

        def child() -> None:
            refused(lambda: session.get_entity(Order, 2, ForUpdate))
            refused(lambda: connection.execute(ONE))
            session.close()
            refused(lambda: connection.execute(ONE))

        in_child(child)
        assert not is_free(engine)
        session.close()
    with LockingSession(engine) as session:
        assert session.get_one(Order, 2).total == 88


def other_threads(engine: sa.Engine) -> None:
    """A session of another thread's scoped_session ends with the thread, before any hook."""
    registry = scoped_session(sessionmaker(engine, class_=LockingSession))
    locked, over = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            registry().get_one_entity(Order, 1, ForUpdate).total = 66
            registry().flush()
            locked.set()
            over.wait(60)
            registry().commit()
            registry.remove()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    assert locked.wait(60)
    in_child(lambda: None)
    assert not is_free(engine)
    over.set()
    thread.join()
    assert not failures
    with LockingSession(engine) as session:
        assert session.get_one(Order, 1).total == 66


def multiprocessing_fork(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 55
        session.flush()
        process = multiprocessing.get_context("fork").Process(target=session.close)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert not is_free(engine)
        session.save_changes()


def fork_of_a_fork(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate)

        def child() -> None:
            process = os.fork()
            if process:
                assert os.waitpid(process, 0)[1] == 0
            session.rollback()

        in_child(child)
        assert not is_free(engine)


def claim(engine: sa.Engine) -> None:
    """The block of a claim belongs to the parent, as do the remaining claims."""
    factory = sessionmaker(engine, class_=LockingSession)
    _claim(engine, claim_each(factory, sa.select(Order).order_by(Order.id)))
    _claim(engine, claim_each(factory, sa.select(Order).order_by(Order.id), batch=2))


def _claim(engine: sa.Engine, claims: Any) -> None:
    one = next(claims)
    in_child(lambda: refused(one.__enter__), lambda: refused(lambda: next_entered(claims)))
    with one as row:
        row.total = 44
        in_child(lambda: refused(one.session.flush))
        assert not is_free(engine)
    for other in claims:
        with other as row:
            row.total = 44
    with LockingSession(engine) as session:
        assert session.scalars(sa.select(Order.total)).all() == [44, 44]


def next_entered(claims: Any) -> None:
    for one in claims:
        with one:
            raise AssertionError("the child has a claim too")


def lease(engine: sa.Engine) -> None:
    """A lease belongs to the parent: the child neither saves nor checks in."""
    factory = sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)
    Base.metadata.drop_all(engine)  # not in a "finally", which the child runs too
    Base.metadata.create_all(engine)
    with factory.begin() as session:
        session.add_all([Job(id=1, state=0), Job(id=2, state=0)])
    leases = lease_each(factory, sa.select(Job), owner="ann", lease=600)
    one = next(leases)
    in_child(lambda: refused(one.__enter__))

    def child() -> None:
        refused(one.saving().__enter__)
        refused(one.renew)
        refused(lambda: next(leases))

    with one:
        in_child(child)  # and leaves the block by SystemExit
        with factory() as session:
            found = session.checkout_of(Job, one.key)
            assert found is not None
            assert found.owner == "ann"
        with one.saving() as row:
            row.state = 33
    Base.metadata.drop_all(engine)


def gate_run(engine: sa.Engine) -> None:
    """A fork in a function of gate.run(): the child ends without saving."""
    gate = DocumentGate()
    factory = sessionmaker(engine, class_=LockingSession, gate=gate)

    def work(session: LockingSession, order: Order) -> int:
        order.total += 1
        session.flush()
        in_child(lambda: refused(session.commit), lambda: refused(lambda: session.scalar(ONE)))
        return order.total

    before = gate.run(factory, Order, 1, lambda _, order: order.total)
    assert gate.run(factory, Order, 1, work) == before + 1
    assert gate.run(factory, Order, 1, lambda _, order: order.total) == before + 1


def gate_of_child(engine: sa.Engine) -> None:
    """The parent's holder at the gate does not make the child wait: the server does."""
    factory = sessionmaker(engine, class_=LockingSession, gate=DocumentGate(), lock_timeout=0.1)

    def child() -> None:
        session.close()
        engine.dispose(close=False)
        with factory() as own, pytest.raises(LockNotAvailable):
            own.get_entity(Order, 1, ForUpdate)

    with factory() as session:
        session.get_one_entity(Order, 1, ForUpdate)
        in_child(child)


def hold_limit(engine: sa.Engine) -> None:
    """A limit that expires in the child ends nothing in the parent."""
    with LockingSession(engine, hold_limit=600, warn_held_after=600) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 22

        def child() -> None:
            refused(session.commit)
            session.rollback()

        in_child(child)
        assert not is_free(engine)
        session.commit()


def two_engines(engine: sa.Engine) -> None:
    other = sa.create_engine(engine.url)
    with LockingSession(binds={Order: engine, Customer: other}) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        session.get_one_entity(Customer, 1, ForUpdate).name = "changed"
        session.flush()
        in_child(lambda: refused(lambda: session.get_entity(Customer, 1)))
        assert not is_free(engine)
        session.commit()
    other.dispose()


def second_engine_unused(engine: sa.Engine) -> None:
    """The child does not connect to a database that the parent never used."""
    other = sa.create_engine(engine.url)
    with LockingSession(binds={Order: engine, Customer: other}) as session:
        session.get_one_entity(Order, 1, ForUpdate)

        def child() -> None:
            refused(lambda: session.get(Customer, 1))
            assert other.pool.checkedin() == 0  # type: ignore[attr-defined]

        in_child(child)


def idle_connections(engine: sa.Engine) -> None:
    """A lock on a connection that both processes use would be granted to both."""
    lent = engine.connect()
    lent.execute(ONE)
    lent.rollback()
    with LockingSession(engine) as session:
        session.get(Order, 1)
    locked, over = os.pipe(), os.pipe()
    process = os.fork()
    if not process:
        with pytest.raises(LockMisuse):
            LockingSession(lent).get_entity(Order, 2, ForUpdate)
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, ForUpdate)
            os.write(locked[1], b"1")
            os.read(over[0], 1)
        os._exit(0)
    os.close(locked[1])
    assert os.read(locked[0], 1)
    assert not is_free(engine)
    os.write(over[1], b"1")
    assert os.waitpid(process, 0)[1] == 0
    with LockingSession(lent) as session:
        session.get_one_entity(Order, 1, ForUpdate)
    lent.close()


def autoflush_and_pipeline(engine: sa.Engine) -> None:
    """Only the parent sends the writes that a pipeline delays until the COMMIT."""
    with LockingSession(engine, pipeline=True) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 11
        session.flush()
        in_child(lambda: refused(session.commit), lambda: refused(session.save_changes))
        session.commit()
    with LockingSession(engine) as session:
        assert session.get_one(Order, 1).total == 11


def asyncio_sessions(engine: sa.Engine) -> None:
    asyncio.run(_asyncio(engine.url))


async def _asyncio(url: sa.URL) -> None:
    driver = {"postgresql": "asyncpg", "mysql": "aiomysql"}[url.get_backend_name()]
    engine = create_async_engine(url.set(drivername=f"{url.get_backend_name()}+{driver}", query={}))
    factory = async_sessionmaker(engine, class_=AsyncLockingSession)

    async def child(session: AsyncLockingSession) -> None:
        for use in (
            lambda: session.get_entity(Order, 1, ForUpdate),
            lambda: session.execute(ONE),
            lambda: session.lock_key("a name"),
            session.connection,
            session.commit,
            session.save_changes,
        ):
            try:
                await use()
            except LockMisuse:
                continue
            raise AssertionError(use)
        await session.close()

    for at_exit in (True, False):
        async with factory() as session:
            (await session.get_one_entity(Order, 1, ForUpdate)).total += 1
            await session.flush()
            process = os.fork()
            if not process:
                if at_exit:  # runs the blocks of the parent's loop, which does not run here
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                    sys.exit()
                asyncio.run(child(session))
                os._exit(0)
            status = os.waitpid(process, 0)[1]  # noqa: ASYNC222  # nothing else runs in this loop
            assert at_exit or status == 0
            assert session.held_locks
            await session.commit()
    await engine.dispose()


def closed_file(engine: sa.Engine) -> None:
    """SQLite: the child may not use the file through any engine; another process may."""
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 99
        session.flush()

        def child() -> None:
            session.close()
            engine.dispose(close=False)
            refused(lambda: session.get(Order, 1))
            refused(lambda: Session(sa.create_engine(engine.url)).get(Order, 1))
            with sa.create_engine("sqlite://").connect() as memory:
                assert memory.scalar(ONE) == 1

        in_child(child)
        session.commit()
    with LockingSession(engine) as session:
        assert session.get_one(Order, 1).total == 99
        session.rollback()
        session.get(Order, 1)  # a plain read by SQLite's driver leaves no lock behind
        in_child(lambda: LockingSession(sa.create_engine(engine.url)).get_one(Order, 1))


def gauge(engine: sa.Engine) -> None:
    """Only the parent's gauge counts the parent's locks."""
    reader = InMemoryMetricReader()
    instrument(meter_provider=MeterProvider([reader], shutdown_on_exit=False))

    def held() -> list[float]:
        data: Any = reader.get_metrics_data()
        metrics = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return [
            point.value
            for metric in metrics
            if metric.name == "doclock.lock.held"
            for point in metric.data.data_points
        ]

    def child() -> None:
        assert held() == []

    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, ForUpdate)
        in_child(child)
        assert held() == [1]
    uninstrument()


def main(url: str, *names: str) -> None:
    innodb = url.startswith(("mysql", "mariadb"))  # its default is REPEATABLE READ
    for name in names:
        print(name, flush=True)
        engine = sa.create_engine(url, **{"isolation_level": "READ COMMITTED"} if innodb else {})
        globals()[name](engine)
        engine.dispose()
    print("ok")


# --------------------------------------------------------------------------------------------------
# The tests.

PATIENCE = 240

# Another library's hook runs before ours, and collects the locals of the parent's threads.
PROGRAM = """
import gc, os, sys

os.register_at_fork(after_in_child=gc.collect)
from tests.integration.forks.test_other_work import main

main(*sys.argv[1:])
"""


def run(database: Database, *cases: Callable[[sa.Engine], None]) -> None:
    """Run the cases in one process, with the database's URL."""
    names = [case.__name__ for case in cases]
    program = [sys.executable, "-c", PROGRAM, database.url, *names]
    found = subprocess.run(program, capture_output=True, check=False, text=True, timeout=PATIENCE)
    assert found.stdout.splitlines() == [*names, "ok"], f"{found.stdout}\n{found.stderr}"
    assert not found.stderr


@pytest.mark.databases("sqlite", "postgresql")  # the others run with the child's objects, below
def test_what_the_parent_has_flushed_and_locked_stays(documents: Database) -> None:
    run(documents, named_lock, without_lock, savepoint, gauge)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_child_has_nothing_of_the_parents(documents: Database) -> None:
    run(
        documents,
        *(lent, other_threads, multiprocessing_fork, fork_of_a_fork),
        *(claim, lease, gate_run, hold_limit),
    )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.not_databases("sqlite")
def test_where_the_child_has_connections_of_its_own(documents: Database) -> None:
    run(documents, gate_of_child, two_engines, second_engine_unused, asyncio_sessions)


@pytest.mark.not_databases("sqlite")
def test_the_child_does_not_use_the_parents_idle_connections(documents: Database) -> None:
    run(documents, idle_connections)


@pytest.mark.databases("postgresql")
def test_what_a_pipeline_keeps(documents: Database) -> None:
    run(documents, autoflush_and_pipeline)


@pytest.mark.databases("sqlite")
def test_the_file_is_closed_to_the_child(documents: Database) -> None:
    run(documents, closed_file)
