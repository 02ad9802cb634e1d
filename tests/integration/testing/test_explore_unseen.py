"""explore() reports unseen work, schedules all engines of a server, and tells retries apart."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool, StaticPool

from sa_doclock import LockingSession, run_transaction
from sa_doclock.testing import Exploration, Outcome, explore
from tests.integration.asyncio.drivers import drivers_of, url_for
from tests.support.databases import Database
from tests.support.models import Order

pytestmark = [
    pytest.mark.own_logic,
    pytest.mark.read_committed,
    pytest.mark.databases("sqlite", "postgresql"),
]

ALL = pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
ADD = sa.text("UPDATE lk_order SET total = total + 10 WHERE id = 1")
TOTAL = sa.select(Order.total).where(Order.id == 1)

Elsewhere = Callable[..., list[Any]]
Function = Callable[[], object]
Run = Callable[..., Exploration]


@pytest.fixture
def run(start_over: Callable[[], None]) -> Run:
    def explored(function: Function, second: Function | None = None, **options: Any) -> Exploration:
        options = {"before": start_over, "invariant": lambda: True, **options}
        return explore(function, second or function, **options)

    return explored


def add(engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.execute(ADD)
        session.commit()


def blind(result: Exploration, reason: str) -> None:
    assert not result.complete
    assert reason in result.unseen, result.unseen
    assert result.unseen in result.incomplete_because
    with pytest.raises(AssertionError, match="does not see all"):
        result.check()
    with pytest.warns(RuntimeWarning, match="the invariant did not hold in 0 of"):
        result.check(allow_unseen=True)


def test_no_statement_at_all(run: Run) -> None:
    blind(run(lambda: None), "no statement of the first function and the second function was seen")


def test_no_statement_of_one_function(run: Run, engine: sa.Engine) -> None:
    result = run(lambda: add(engine), lambda: None)
    blind(result, "no statement of the second function was seen")


def test_statements_that_use_no_table_are_none(run: Run, engine: sa.Engine) -> None:
    def ping() -> None:
        with Session(engine) as session:
            session.execute(sa.text("SELECT 1"))
            session.commit()

    blind(run(ping), "no statement of the first function")


def test_a_function_that_works_only_at_its_first_call(run: Run, engine: sa.Engine) -> None:
    done: list[bool] = []

    def once() -> None:
        if len(done) < 2:
            add(engine)
        done.append(True)

    blind(run(once), "no statement of the first function")


def test_a_thread(run: Run, engine: sa.Engine) -> None:
    def in_thread() -> None:
        add(engine)
        thread = threading.Thread(target=add, args=(engine,), name="helper")
        thread.start()
        thread.join()

    blind(run(in_thread), "thread 'helper' sent 'UPDATE lk_order")


def test_an_executor_unless_it_runs_in_the_context_of_the_function(
    run: Run, engine: sa.Engine
) -> None:
    with ThreadPoolExecutor(2) as executor:

        def in_executor() -> None:
            executor.submit(add, engine).result()

        def in_context() -> None:
            executor.submit(contextvars.copy_context().run, add, engine).result()

        blind(run(in_executor), "without waiting for a turn")
        seen = run(in_context)
        assert (seen.complete, seen.unseen) == (True, ""), seen


def test_several_threads_of_one_function_at_once(run: Run, engine: sa.Engine) -> None:
    barrier = threading.Barrier(2)

    def read() -> None:
        with Session(engine) as session:
            barrier.wait(30)
            session.scalar(TOTAL)

    def both() -> None:
        with ThreadPoolExecutor(2) as executor:
            runs = [executor.submit(contextvars.copy_context().run, read) for _ in range(2)]
            for one in runs:
                one.result()

    result = run(both, lambda: add(engine))
    blind(result, "the first function sends statements in several threads or tasks at once")


def test_a_coroutine_that_works_in_threads(run: Run, engine: sa.Engine) -> None:
    """asyncio.to_thread() passes the context on, and run_in_executor() does not."""

    async def to_thread() -> None:
        await asyncio.to_thread(add, engine)

    async def in_executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, add, engine)

    seen = run(to_thread)
    assert (seen.complete, seen.unseen) == (True, ""), seen
    assert seen.waited
    blind(run(in_executor), "without waiting for a turn")


def test_several_tasks_of_one_coroutine_at_once(run: Run, documents: Database) -> None:
    engine = create_async_engine(
        url_for(documents, drivers_of(documents.column)[0]), poolclass=NullPool
    )

    async def read(here: asyncio.Event, there: asyncio.Event) -> None:
        async with AsyncSession(engine) as session:
            here.set()
            await there.wait()
            await session.scalar(TOTAL)

    async def both() -> None:
        one, other = asyncio.Event(), asyncio.Event()
        await asyncio.gather(read(one, other), read(other, one))

    async def write() -> None:
        async with AsyncSession(engine) as session:
            await session.execute(ADD)
            await session.commit()

    blind(run(both, write), "sends statements in several threads or tasks at once")
    asyncio.run(engine.dispose())


def test_another_process(run: Run, engine: sa.Engine) -> None:
    def in_process() -> None:
        add(engine)
        subprocess.run([sys.executable, "-c", ""], check=True)

    blind(run(in_process), "starts another process in ")


def test_a_raw_connection(run: Run, engine: sa.Engine) -> None:
    def raw() -> None:
        add(engine)
        connection = engine.raw_connection()
        cursor = connection.cursor()
        cursor.execute(str(ADD))
        connection.commit()
        connection.close()

    blind(run(raw), "uses a raw connection in tests/integration/testing/test_explore_unseen.py:")


@pytest.mark.databases("sqlite")
def test_a_connection_of_the_driver(run: Run, engine: sa.Engine) -> None:
    import sqlite3  # noqa: PLC0415

    def own() -> None:
        add(engine)
        sqlite3.connect(":memory:").close()

    blind(run(own), "uses a raw connection in ")


def _by_a_cursor(session: Session) -> None:
    session.connection().connection.cursor().close()


def test_a_cursor_of_the_driver_beside_statements(run: Run, engine: sa.Engine) -> None:
    def seen_and_unseen() -> None:
        with Session(engine) as session:
            session.scalar(TOTAL)
            _by_a_cursor(session)

    blind(run(seen_and_unseen), "uses a raw connection in ")


def test_a_connection_that_both_functions_use(run: Run, engine: sa.Engine) -> None:
    """Like the sessions of a fixture that rolls back."""
    mutex = threading.Lock()
    with engine.connect() as connection:

        def in_savepoint() -> None:
            with mutex, Session(connection, join_transaction_mode="create_savepoint") as session:
                session.scalar(TOTAL)
                session.commit()

        def at_another_time() -> None:
            with Session(connection) as session:
                session.scalar(TOTAL)

        blind(run(at_another_time, in_savepoint), "both functions use one connection in ")
        connection.rollback()


@pytest.mark.databases("sqlite")
def test_a_pool_of_one_connection(run: Run, engine: sa.Engine) -> None:
    own = sa.create_engine(
        engine.url, poolclass=StaticPool, connect_args={"check_same_thread": False}
    )

    def read() -> None:
        with Session(own) as session:
            session.scalar(TOTAL)
            session.scalar(TOTAL)

    def write() -> None:
        add(own)

    blind(run(read, write), "both functions use one connection in ")
    own.dispose()


def test_helpers_of_before_and_invariant_are_not_counted(run: Run, engine: sa.Engine) -> None:
    def in_thread() -> None:
        thread = threading.Thread(target=add, args=(engine,))
        thread.start()
        thread.join()

    result = run(partial(add, engine), before=in_thread, invariant=in_thread)
    assert (result.complete, result.unseen) == (True, ""), result


@ALL
@pytest.mark.parametrize("kind", ["engine-a-call", "execution-options", "no-pool"])
def test_all_engines_of_a_server_are_scheduled_as_one(
    run: Run, engine: sa.Engine, read_committed: dict[str, Any], elsewhere: Elsewhere, kind: str
) -> None:
    without_pool = sa.create_engine(engine.url, poolclass=NullPool, **read_committed)

    def engine_of_call() -> sa.Engine:
        if kind == "engine-a-call":
            return sa.create_engine(engine.url, poolclass=NullPool, **read_committed)
        return engine.execution_options(own=1) if kind == "execution-options" else without_pool

    def add_ten() -> None:
        with LockingSession(engine_of_call()) as session, session.locked(Order, 1) as order:
            order.total += 10

    def lose_ten() -> None:
        with Session(engine_of_call()) as session:
            session.get_one(Order, 1).total += 10
            session.commit()

    one = run(add_ten, invariant=lambda: elsewhere(TOTAL) == [(50,)])
    assert (one.complete, one.failures) == (True, ()), one
    assert one.waited
    found = run(lose_ten, invariant=lambda: elsewhere(TOTAL) == [(50,)])
    assert found.complete, found
    assert {failure.anomaly for failure in found.failures} == {"lost update"}


@pytest.mark.databases("postgresql")
def test_engines_of_two_levels_with_one_url(run: Run, engine: sa.Engine) -> None:
    """Facts about one do not apply to the other: each AUTOCOMMIT statement is a transaction."""
    of_call = partial(sa.create_engine, engine.url, poolclass=NullPool)

    def change() -> None:
        with of_call(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(sa.text("UPDATE lk_order SET total = 41 WHERE id = 1"))
            connection.execute(sa.text("UPDATE lk_order SET total = 42 WHERE id = 1"))

    def read() -> int:
        with Session(of_call()) as session:
            return session.scalars(TOTAL).one()

    def sees(_: Outcome, reader: Outcome) -> bool:
        return bool(reader.value != 41)

    result = run(change, read, invariant=sees)
    assert result.complete, result
    assert len(result.failures) == 1


def test_an_error_of_the_invariant_is_not_the_programs(run: Run, engine: sa.Engine) -> None:
    def typo() -> bool:
        return {"total": True}["totl"]

    with pytest.raises(RuntimeError, match=r"the invariant failed after order .* KeyError") as told:
        run(lambda: add(engine), invariant=typo)
    assert isinstance(told.value.__cause__, KeyError)


def test_an_outcomes_error_and_an_assertion_are_the_programs(run: Run, engine: sa.Engine) -> None:
    failed: list[bool] = []

    def fails_later() -> None:
        add(engine)
        failed.append(True)
        if len(failed) > 1:
            raise KeyError("program")

    def no_error(first: Outcome, second: Outcome) -> None:
        first.result()
        second.result()

    result = run(fails_later, lambda: add(engine), invariant=no_error)
    assert result.failures
    assert isinstance(result.failures[0].error, KeyError)

    def wrong() -> None:
        raise AssertionError("wrong")

    assert run(lambda: add(engine), invariant=wrong).failures


@ALL
def test_right_by_retry_is_told_from_no_conflict(
    run: Run, engine: sa.Engine, elsewhere: Elsewhere
) -> None:
    sessions = sessionmaker(engine, class_=LockingSession)

    def at_version(session: LockingSession) -> None:
        total = session.scalars(TOTAL).one()
        changed = session.execute(
            sa.update(Order).where(Order.id == 1, Order.total == total).values(total=total + 10),
            execution_options={"synchronize_session": False},
        )
        if changed.rowcount != 1:  # type: ignore[attr-defined]
            raise Conflict

    class Conflict(Exception):
        pass

    def with_retry() -> None:
        run_transaction(sessions, at_version, retry_on=lambda error: isinstance(error, Conflict))

    def other_row() -> None:
        with sessions() as session, session.locked(Order, 2) as order:
            order.total += 10

    retried = run(with_retry, invariant=lambda: elsewhere(TOTAL) == [(50,)])
    assert (retried.failures, retried.unseen) == ((), ""), retried
    assert retried.retried
    assert "tried again in " in str(retried)
    if engine.dialect.name != "sqlite":  # it locks its whole file
        apart = run(lambda: add(engine), other_row)
        assert (apart.waited, apart.retried) == (0, 0)
        assert "never waited for each other" in str(apart)
    waits = run(lambda: add(engine))
    assert waits.waited
    assert waits.retried == 0
