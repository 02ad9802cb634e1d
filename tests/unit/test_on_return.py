"""The registry of actions that run before a connection goes back to its pool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import QueuePool

from sa_doclock.pool import (
    ROLLBACK,
    CallFunction,
    ExecuteStatement,
    execute_statements_now,
    on_return,
    withdraw,
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Return an engine of one connection, which keeps the table ``ran`` as long as it is open."""
    engine = create_engine("sqlite://", poolclass=QueuePool, pool_size=1, max_overflow=0)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE ran (name)")
    yield engine
    engine.dispose()


def insert(name: str) -> ExecuteStatement:
    return ExecuteStatement(f"INSERT INTO ran VALUES ('{name}')")


def ran(connection: Connection) -> list[Any]:
    rows = connection.exec_driver_sql("SELECT name FROM ran ORDER BY rowid")
    return list(rows.scalars())


def raw(connection: Connection) -> Any:
    return connection.connection.driver_connection


def test_functions_run_before_the_rollback_and_statements_after_it(engine: Engine) -> None:
    with engine.connect() as connection:
        driver = raw(connection)
        driver.isolation_level = None  # each statement is committed unless BEGIN was sent
        seen: list[bool] = []
        on_return(connection, CallFunction(lambda: seen.append(driver.in_transaction)))
        on_return(connection, insert("first"))
        on_return(connection, ROLLBACK)
        on_return(connection, insert("second"))
        driver.execute("BEGIN")
        driver.execute("INSERT INTO ran VALUES ('not committed')")
    assert seen == [True]
    with engine.connect() as connection:
        assert raw(connection) is driver
        assert ran(connection) == ["second", "first"]


def test_each_runs_once(engine: Engine) -> None:
    calls: list[str] = []
    action = CallFunction(lambda: calls.append("called"))
    with engine.connect() as connection:
        on_return(connection, action)
        on_return(connection, action)
    with engine.connect():
        pass
    assert calls == ["called"]


def test_what_is_withdrawn_does_not_run(engine: Engine) -> None:
    calls: list[str] = []
    kept = CallFunction(lambda: calls.append("kept"))
    dropped = CallFunction(lambda: calls.append("dropped"))
    with engine.connect() as connection:
        withdraw(connection, dropped)  # not registered
        on_return(connection, dropped)
        on_return(connection, kept)
        withdraw(connection, dropped)
        withdraw(connection, dropped)
    assert calls == ["kept"]
    on_return(connection, kept)  # closed: nothing to do
    withdraw(connection, kept)
    with engine.connect():
        pass
    assert calls == ["kept"]


def test_an_action_that_fails_closes_the_connection(engine: Engine) -> None:
    def fail() -> None:
        raise OSError

    with engine.connect() as connection:
        driver = raw(connection)
        on_return(connection, CallFunction(fail))
    with engine.connect() as connection:
        assert raw(connection) is not driver


def test_statements_now_leave_the_rest_for_the_return(engine: Engine) -> None:
    calls: list[str] = []
    with engine.connect() as connection:
        raw(connection).isolation_level = None
        on_return(connection, insert("statement"))
        on_return(connection, CallFunction(lambda: calls.append("function")))
        execute_statements_now(connection)
        assert (ran(connection), calls) == (["statement"], [])
    with engine.connect() as connection:
        assert (ran(connection), calls) == (["statement"], ["function"])


def test_a_lost_connection_forgets_its_actions(engine: Engine) -> None:
    calls: list[str] = []
    with engine.connect() as connection:
        on_return(connection, CallFunction(lambda: calls.append("called")))
        connection.invalidate()
        on_return(connection, CallFunction(lambda: calls.append("called")))
    with engine.connect():
        pass
    assert calls == []


def test_after_dispose_it_goes_back_to_a_pool_that_the_engine_has_no_more(engine: Engine) -> None:
    calls: list[str] = []
    with engine.connect() as connection:
        engine.dispose()
        on_return(connection, CallFunction(lambda: calls.append("called")))
    assert calls == ["called"]


FIRST_ACTION_DURING_A_RESET = """if True:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import QueuePool
    from sa_doclock.pool import CallFunction, on_return

    engine = create_engine("sqlite://", poolclass=QueuePool)
    calls = []

    @event.listens_for(engine, "reset")
    def slow(*_):  # another thread has its first lock while this one waits for its server
        if not calls:
            calls.append("slow")
            with engine.connect() as other:
                on_return(other, CallFunction(lambda: calls.append("action")))

    @event.listens_for(engine, "reset")
    def last(*_):
        calls.append("last")

    with engine.connect():
        pass
    print(*calls)
"""


def test_the_first_action_of_a_process_disturbs_nobody_elses_reset() -> None:
    # Listening to the one pool at this time is "deque mutated during iteration" in the thread of
    # the slow listener: its connection would be closed, and the last listener not be called.
    code = [sys.executable, "-c", FIRST_ACTION_DURING_A_RESET]
    result = subprocess.run(code, capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout, result.stderr) == ("slow action last last\n", "")
