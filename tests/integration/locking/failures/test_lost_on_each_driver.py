"""A connection whose answer was not read is lost, with its locks, on each driver.

SQLAlchemy goes by the driver's word, or by the text of its error, and does not know each of them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.integration.instrumentation.hearing import hearing
from tests.integration.questions.conftest import DRIVERS, run_on, url_of
from tests.reliability.faults.proxy import (
    AnswerGarbled,
    Proxy,
    StatementHeld,
    StatementReset,
    proxy_to,
)
from tests.support.databases import Database
from tests.support.models import Customer, Order

ForUpdate = LockOptions.ForUpdate
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
    """Lose the connection with a lock, and go on over another one."""
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


# SQLAlchemy itself knows what MySQL's drivers say of a connection that was reset.
@pytest.mark.databases("postgresql")
def test_while_it_waits_for_an_answer(documents: Database, proxy: Proxy) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            for text, use in USES.items():
                ask_once(session)
                lose(session, proxy, text, use)

    by_each_driver(documents, proxy, play)


def ask_once(session: LockingSession) -> None:
    """Have the server asked what is asked once of each table on each connection."""
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

    for driver in ("psycopg", "psycopg2", "pg8000"):  # asyncpg has prepared the question of Order
        by_driver(documents, proxy, driver, play)


def check_gone(session: LockingSession, driver: object) -> None:
    """Check that nothing is held, and that the session goes on over another connection."""
    assert not session.held_locks
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    assert session.connection().connection.driver_connection is not driver
    assert session.scalar(sa.text("SELECT 4711")) == 4711
    session.rollback()


@pytest.mark.databases("mysql", "mariadb")
def test_an_answer_that_the_driver_cannot_read(documents: Database, proxy: Proxy) -> None:
    """The error of PyMySQL and aiomysql is none of their own: an AttributeError, or any other."""

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
    """Raised by the handler of a signal, as by those of some task queues."""


@contextmanager
def raising_at_a_signal() -> Iterator[Callable[[], object]]:
    """Yield what sends this process a signal, whose handler raises TimeIsUpError."""

    def handle(*_: object) -> None:
        raise TimeIsUpError

    main, before = threading.main_thread().ident, signal.signal(signal.SIGUSR1, handle)
    assert main is not None
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


# psycopg2 waits in C, where no handler is called; those of asyncio are called in the loop.
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
