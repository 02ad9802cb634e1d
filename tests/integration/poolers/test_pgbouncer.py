"""Statements and settings that PgBouncer leaks to other clients, as check_database() finds them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sa_doclock import LockingSession, LockNotSupported, LockOptions, check_database
from tests.integration.poolers.documents import documents
from tests.support.databases import Database
from tests.support.models import Order

__all__ = ["documents"]  # a fixture

ForUpdate = LockOptions.ForUpdate
PGBOUNCERS = ("pgbouncer-transaction", "pgbouncer-session")
pytestmark = [
    *(pytest.mark.poolers, pytest.mark.slow, pytest.mark.exhaustive),
    pytest.mark.databases(*PGBOUNCERS),
]


_counted = itertools.count(20, 20)


@contextmanager
def moved_to_another_connection(documents: Database) -> Iterator[LockingSession]:
    """Yield a session that prepared statements on a connection which another client now uses."""
    prepares = documents.engine(connect_args={"prepare_threshold": 0})
    other = documents.engine()
    with LockingSession(prepares) as session:
        # psycopg numbers the names: this avoids statements that an earlier test left on a
        # connection.
        for number in range(next(_counted)):
            session.execute(sa.text(f"SELECT {number} AS n{number}"))
        session.commit()
        session.get_one_entity(Order, 2, ForUpdate)
        session.scalars(sa.select(Order.total)).all()
        session.commit()
        session.expunge_all()
        with other.connect() as busy:
            busy.exec_driver_sql("SELECT 1")  # on the connection used last
            yield session


def is_transaction_pooling(documents: Database) -> bool:
    return documents.column == "pgbouncer-transaction"


def test_a_lock_whose_statement_was_prepared_elsewhere_says_what_to_set(
    documents: Database,
) -> None:
    with moved_to_another_connection(documents) as session:
        if not is_transaction_pooling(documents):
            assert session.get_entity(Order, 2, ForUpdate) is not None
            return
        with pytest.raises(LockNotSupported, match=r'"prepare_threshold": None'):
            session.get_entity(Order, 2, ForUpdate)


def test_so_does_the_error_of_another_statement(documents: Database) -> None:
    with moved_to_another_connection(documents) as session:
        if not is_transaction_pooling(documents):
            session.scalars(sa.select(Order.total)).all()
            return
        with pytest.raises(sa.exc.DBAPIError, match=r'"prepare_threshold": None'):
            session.scalars(sa.select(Order.total)).all()


def codes(engine: sa.Engine) -> set[str]:
    found = {one.code for one in check_database(engine)}
    assert "not-checked" not in found
    return found


@pytest.mark.parametrize("threshold", [5, None])
def test_check_database_finds_it(documents: Database, threshold: int | None) -> None:
    found = codes(documents.engine(connect_args={"prepare_threshold": threshold}))
    assert "pooler" in found
    moves = threshold is not None and is_transaction_pooling(documents)
    assert ("postgresql-prepared-statements" in found) is moves


UNCACHED = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
NAMED = {"prepared_statement_name_func": lambda: f"__asyncpg_{uuid4()}__"}


@pytest.mark.parametrize(
    ("options", "moves"),
    [({}, True), (NAMED, True), ({**NAMED, **UNCACHED}, False)],
    ids=["defaults", "named", "of the page"],
)
def test_check_database_finds_the_caches_of_asyncpg(
    documents: Database, options: dict[str, Any], moves: bool
) -> None:
    url = sa.make_url(documents.url).set(drivername="postgresql+asyncpg")

    async def check() -> set[str]:
        engine = create_async_engine(url, connect_args=options)
        async with engine.connect() as connection:
            found = await connection.run_sync(lambda _: codes(engine.sync_engine))
        await engine.dispose()
        return found

    found = asyncio.run(check())
    wanted = moves and is_transaction_pooling(documents)
    assert ("postgresql-prepared-statements" in found) is wanted


def test_check_database_finds_what_a_listener_sets(documents: Database) -> None:
    sets, innocent = documents.engine(), documents.engine()
    name = "deadlock_timeout"  # harmless, should a test get this connection next

    def connected(driver: Any, _record: object) -> None:
        driver.execute(f"SET {name} = '1001ms'")
        driver.commit()

    _reset(innocent)  # an earlier test may have used asyncpg, which sets jit
    assert "postgresql-session-settings" not in codes(innocent)
    sa.event.listen(sets, "connect", connected)
    try:
        for engine in (sets, innocent):  # the other program has it now
            found = {one.code: one for one in check_database(engine)}
            leaks = found.get("postgresql-session-settings")
            assert (leaks is not None) is is_transaction_pooling(documents)
            assert leaks is None or name in leaks.text
    finally:
        _reset(innocent)


def _reset(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("RESET ALL")
        connection.commit()
