"""A connection that is reset while it waits for an answer is lost, with its locks, on each driver.

SQLAlchemy goes by the driver's word, or by the text of its error, and does not know each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.integration.instrumentation.hearing import hearing
from tests.integration.questions.conftest import DRIVERS, run_on, url_of
from tests.reliability.faults.proxy import Proxy, StatementReset, proxy_to
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


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_while_it_waits_for_an_answer(documents: Database, proxy: Proxy) -> None:
    def play(engine: sa.Engine) -> None:
        with LockingSession(engine) as session:
            for text, use in USES.items():
                lose(session, proxy, text, use)

    for driver in DRIVERS[documents.name]:
        url = url_of(documents, driver, proxy.url)
        run_on(url.set(query={}) if driver in ("pg8000", "asyncpg") else url, play)
