"""Interrupted statements and drivers, and the connections that this costs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockLost, LockOptions
from sa_doclock.sqlalchemy_internals import execute_listeners
from tests.integration.instrumentation.test_events import hearing
from tests.integration.questions.conftest import DRIVERS, run_on, url_of
from tests.reliability.faults.proxy import (
    AnswerGarbled,
    Proxy,
    StatementHeld,
    StatementReset,
    proxy_to,
)
from tests.support.databases import Database
from tests.support.models import Customer, Line, Order
from tests.support.rows import rows
from tests.support.tracing import CtrlC

# --------------------------------------------------------------------------------------------------
# An interrupted statement: the session drops its connection, and so the lock, at once.

ForUpdate = LockOptions.ForUpdate


def test_the_lock_is_free_while_the_exception_is_looked_at(
    session: LockingSession, engine: sa.Engine, make_session: Callable[..., LockingSession]
) -> None:
    """Its traceback refers to the cursor, whose unread rows keep SQLite's transaction open."""

    def press_ctrl_c(_: object, __: object, statement: str, *___: object) -> None:
        if "lk_line" in statement:
            raise KeyboardInterrupt

    event.listen(engine, "after_cursor_execute", press_ctrl_c)
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.scalars(sa.select(Line))
    session.close()
    other = make_session()
    assert other.get_one_entity(Order, 1, ForUpdate, lock_timeout=10).total == 30
    assert caught.tb is not None


def press_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


@rows(
    "module, name, value",
    [
        ("core.locking.acquire", "_end_granted", press_ctrl_c),
        ("core.ledger", "time", SimpleNamespace(monotonic=press_ctrl_c)),
    ],
)
def test_the_session_can_be_used_after_an_interruption_behind_the_grant(
    session: LockingSession, monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: object
) -> None:
    session.begin()
    savepoint = session.begin_nested()
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[f"sa_doclock.{module}"], name, value)
        with pytest.raises(KeyboardInterrupt):
            session.get_entity(Order, 1, ForUpdate)
    savepoint.rollback()
    assert not session.held_locks
    assert session.get_one_entity(Order, 1, ForUpdate).total == 30
    session.rollback()


def test_the_listener_of_a_lock_does_nothing_after_an_interruption(
    make_session: Callable[..., LockingSession],
) -> None:
    ctrl_c = CtrlC(
        "sa_doclock.core.locking.execute_listeners",
        "sa_doclock.sqlalchemy_internals",
        "contextlib",
        "sqlalchemy.event.api",
    )
    session = make_session()
    event.listen(session, "do_orm_execute", lambda _: None)
    while ctrl_c.during(lambda: session.get_entity(Order, 1, ForUpdate)):
        session.rollback()
        for left in [*execute_listeners(session)][1:]:
            left(None)  # it does not check the statement


# --------------------------------------------------------------------------------------------------
# The driver turns an interruption into its own error: the session drops the connection.

STATEMENT = sa.select(sa.literal(1).label("interrupted"))


def interrupt_the_driver(engine: sa.Engine) -> None:
    """Do what psycopg does if a task is cancelled as it enters its pipeline."""

    def execute(_: Any, statement: str, *__: object) -> None:
        if "interrupted" in statement:
            try:
                raise KeyboardInterrupt
            finally:
                raise AssertionError

    event.listen(engine, "do_execute", execute)


def press_ctrl_c_driver() -> None:
    raise KeyboardInterrupt


def fail_in_the_driver(engine: sa.Engine) -> None:
    def execute(_: Any, statement: str, *__: object) -> None:
        if "interrupted" in statement:
            raise ZeroDivisionError

    event.listen(engine, "do_execute", execute)


def test_the_interruption_comes_out_and_the_connection_is_not_used_again(
    session: LockingSession, engine: sa.Engine
) -> None:
    interrupt_the_driver(engine)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    connection = session.connection()
    with pytest.raises(KeyboardInterrupt):
        session.execute(STATEMENT)
    assert connection.invalidated
    assert not session.held_locks
    session.rollback()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).total == 30


def test_an_error_while_the_caller_handles_one_stays_an_error(
    session: LockingSession, engine: sa.Engine
) -> None:
    fail_in_the_driver(engine)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    try:
        press_ctrl_c_driver()
    except KeyboardInterrupt:
        with pytest.raises(ZeroDivisionError):
            session.execute(STATEMENT)
    assert not session.connection().invalidated
    assert session.held_locks


# --------------------------------------------------------------------------------------------------
# A connection with an unread answer is lost with its locks, on each driver.
#
# SQLAlchemy relies on the driver's word or its error text, and does not recognize every one.

Use = Callable[[LockingSession], object]


@pytest.fixture
def proxy(documents: Database) -> Iterator[Proxy]:
    with proxy_to(documents.url) as proxy:
        yield proxy


def write(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 4242
    session.flush()


# The text that each sends, and how.
USES: dict[str, Use] = {
    "4242": lambda session: session.scalar(sa.text("SELECT 4242")),
    "UPDATE": write,
    "lk_customer": lambda session: session.get_entity(Customer, 1, ForUpdate),
    "SAVEPOINT": lambda session: session.begin_nested() and session.scalar(sa.text("SELECT 1")),
}


def lose(session: LockingSession, proxy: Proxy, text: str, use: Use) -> None:
    """Lose the connection with a lock, and continue on another."""
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        driver: Any = session.connection().connection.driver_connection
        proxy.commit_cut = cut = StatementReset(text)
        with pytest.raises(LockLost, match="the connection to the server was lost") as caught:
            use(session)
        assert cut.happened, text
        assert caught.value.orig is not None
        assert not session.held_locks
        assert [outcome for _, outcome in heard.released] == ["lost"], text
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        assert session.connection().connection.driver_connection is not driver
        assert session.scalar(sa.text("SELECT 4711")) == 4711
        session.rollback()


def by_each_driver(documents: Database, proxy: Proxy, play: Callable[[sa.Engine], None]) -> None:
    for driver in DRIVERS[documents.name]:
        by_driver(documents, proxy, driver, play)


def by_driver(
    documents: Database, proxy: Proxy, driver: str, play: Callable[[sa.Engine], None]
) -> None:
    url = url_of(documents, driver, proxy.url)
    run_on(url.set(query={}) if driver in ("pg8000", "asyncpg") else url, play)


# SQLAlchemy itself recognizes the errors of MySQL's drivers for a reset connection.
@pytest.mark.databases("postgresql")
def test_while_it_waits_for_an_answer(documents: Database, proxy: Proxy) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            for text, use in USES.items():
                ask_once(session)
                lose(session, proxy, text, use)

    by_each_driver(documents, proxy, play)


def ask_once(session: LockingSession) -> None:
    """Run the queries that the library sends once per table and connection."""
    session.get_entity(Customer, 1, LockOptions.SharedRead)  # asyncpg keeps the statement
    session.rollback()


# pg8000 raises the error of the socket itself.
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("held", [False, True])
def test_at_a_question_about_a_table(documents: Database, proxy: Proxy, held: bool) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            if held:
                session.get_one_entity(Order, 1, ForUpdate)
            driver: Any = session.connection().connection.driver_connection
            proxy.commit_cut = cut = StatementReset("pg_class")
            with pytest.raises(LockLost if held else DBAPIError) as caught:
                session.get_entity(Customer, 1, ForUpdate)
            assert cut.happened
            assert caught.value.connection_invalidated
            check_gone(session, driver)

    for driver in ("psycopg", "psycopg2", "pg8000"):  # asyncpg has prepared the query for Order
        by_driver(documents, proxy, driver, play)


def check_gone(session: LockingSession, driver: object) -> None:
    """Assert that no lock is held, and that the session continues on another connection."""
    assert not session.held_locks
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    assert session.connection().connection.driver_connection is not driver
    assert session.scalar(sa.text("SELECT 4711")) == 4711
    session.rollback()


@pytest.mark.databases("mysql", "mariadb")
def test_an_answer_that_the_driver_cannot_read(documents: Database, proxy: Proxy) -> None:
    """PyMySQL and aiomysql raise no error of their own, but an AttributeError or any other."""

    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            ask_once(session)
            session.get_one_entity(Order, 1, ForUpdate)
            driver: Any = session.connection().connection.driver_connection
            proxy.commit_cut = cut = AnswerGarbled("lk_customer")
            with pytest.raises(Exception) as caught:  # noqa: PT011  # any
                session.get_entity(Customer, 1, ForUpdate)
            assert cut.happened
            of_driver = engine.dialect.loaded_dbapi.Error
            assert not isinstance(caught.value.__cause__ or caught.value, of_driver)
            check_gone(session, driver)

    by_each_driver(documents, proxy, play)


class TimeIsUpError(Exception):
    """Raised by a signal handler, as in some task queues."""


@contextmanager
def raising_at_a_signal() -> Iterator[Callable[[], object]]:
    """Yield a function that sends this process a signal, whose handler raises TimeIsUpError."""

    def handle(*_: object) -> None:
        raise TimeIsUpError

    main, before = threading.main_thread().ident, signal.signal(signal.SIGUSR1, handle)
    assert main is not None
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


# psycopg2 waits in C, which calls no handler; asyncio drivers get theirs in the loop.
WAITING = {"postgresql": ("psycopg", "pg8000"), "mysql": ("pymysql",), "mariadb": ("pymysql",)}


@pytest.mark.databases(*WAITING)
def test_the_handler_of_a_signal_raises(documents: Database, proxy: Proxy) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session, raising_at_a_signal() as send_signal:
            for text in ("4242", "UPDATE", "lk_customer"):
                ask_once(session)
                session.get_one_entity(Order, 1, ForUpdate)
                driver: Any = session.connection().connection.driver_connection
                proxy.commit_cut = cut = StatementHeld(text, send_signal)
                with pytest.raises(TimeIsUpError):
                    USES[text](session)
                assert cut.happened, text
                check_gone(session, driver)

    for driver in WAITING[documents.name]:
        by_driver(documents, proxy, driver, play)
