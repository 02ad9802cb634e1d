"""The actions of this folder's tests, connections beside a pool, and a low-privilege account."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockConnection, LockingSession, LockNotAvailable, LockOptions, LockWait
from sa_doclock.dialects import strategy_for
from sa_doclock.features.diagnosis import SharedQueries
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order

# --------------------------------------------------------------------------------------------------
# A server account that may read and write the tables, but not query the server's state.

_NAME = "doclock_poor"
_MAKE = {
    "postgresql": (
        f"CREATE ROLE {_NAME} LOGIN PASSWORD '{_NAME}'",
        f"GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA public TO {_NAME}",
    ),
    "mysql": (
        f"CREATE USER {_NAME} IDENTIFIED BY '{_NAME}'",
        f"GRANT SELECT, UPDATE ON `{{}}`.* TO {_NAME}",
    ),
}
_DROP = {
    "postgresql": (f"DROP OWNED BY {_NAME}", f"DROP ROLE {_NAME}"),
    "mysql": (f"DROP USER {_NAME}",),
}


@contextmanager
def account(database: Database) -> Iterator[sa.URL]:
    """Create it; skip the test if the tests' own account may not."""
    url = sa.make_url(database.url)
    family = url.get_backend_name()
    with database.observer().connect() as connection:
        try:
            for statement in _MAKE[family]:
                connection.exec_driver_sql(statement.format(url.database))
        except sa.exc.DBAPIError as error:
            pytest.skip(f"no account could be made: {error.orig}")
        try:
            yield url.set(username=_NAME, password=_NAME)
        finally:
            for statement in _DROP[family]:
                connection.exec_driver_sql(statement)


# --------------------------------------------------------------------------------------------------
# Steps shared by the tests in this folder, and connections outside the pool.

# --------------------------------------------------------------------------------------------------
# Connections outside the pool that query the server's state.


def queries_of(engine: sa.Engine) -> SharedQueries[object, object]:
    queries: SharedQueries[object, object] = strategy_for(engine).findings.setdefault(
        SharedQueries, SharedQueries(under_asyncio=engine.dialect.is_async)
    )
    return queries


@contextmanager
def side_connections(engine: sa.Engine, asking: int) -> Iterator[list[str]]:
    """Record the connections made beside the pool, whose own are open already.

    The first waits until this many queries have started, as on a server that is slow to connect.
    """
    seen: list[str] = []
    queries = queries_of(engine)

    def made(*_: object) -> None:
        seen.append("made")
        for _attempt in range(int(PATIENCE * 1000)):
            if len(queries._answers) >= asking:
                return
            Event().wait(0.001)

    def closed(*_: object) -> None:
        seen.append("closed")

    event.listen(engine, "connect", made)
    event.listen(engine, "close", closed)
    yield seen
    event.remove(engine, "connect", made)
    event.remove(engine, "close", closed)


# --------------------------------------------------------------------------------------------------
# Steps shared by the tests in this folder.

T = TypeVar("T")

ON_SERVERS = pytest.mark.databases("postgresql", "mysql", "mariadb")
NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait

#: Whether the server knows the holder of a row that has no waiter.
KNOWS_HOLDERS: Mapping[str, bool] = {"postgresql": True, "mysql": True, "mariadb": False}

_LOCK_TABLE: Mapping[str, tuple[str, str]] = {
    "postgresql": ("LOCK TABLE lk_order IN ACCESS EXCLUSIVE MODE", "SELECT 1"),
    "mysql": ("LOCK TABLES lk_order WRITE", "UNLOCK TABLES"),
    "mariadb": ("LOCK TABLES lk_order WRITE", "UNLOCK TABLES"),
}


def refused(
    session: LockingSession,
    entity: type[Any],
    *idents: Any,
    lock: LockOptions = NO_WAIT,
    **how: Any,
) -> LockNotAvailable:
    """Request a lock that another holds; return the error.  Without keys: request all rows."""
    asked: Callable[[], object]
    if not idents:
        asked = partial(session.scalars, session.entity_set(entity, lock))
    elif len(idents) == 1:
        asked = partial(session.get_entity, entity, idents[0], lock, **how)
    else:
        asked = partial(session.get_entities, entity, idents, lock)
    with pytest.raises(LockNotAvailable) as caught:
        asked()
    return caught.value


def blockers(
    session: LockingSession, entity: type[Any], *idents: Any, **how: Any
) -> dict[int, LockConnection]:
    """Request a lock that another holds, in a transaction that then ends; return the blockers."""
    found = refused(session, entity, *idents, **how).blockers
    session.rollback()
    by_id = {one.connection_id: one for one in found}
    assert list(by_id) == sorted(by_id)
    return by_id


def ids(*actors: Actor[Any]) -> set[int]:
    """Return the server's ids for the connections of these actors."""
    return {actor.connection_id() for actor in actors}


def among(waits: list[LockWait], *actors: Actor[Any]) -> list[LockWait]:
    """Leave out waiters elsewhere on the server; an actor may not be connected yet."""
    mine = {known for actor in actors for known in actor.connection_ids()}
    return [wait for wait in waits if wait.waiter.connection_id in mine]


def up_to_date(database: Database, ask: Callable[[], T], fits: Callable[[T], object]) -> T:
    """Query; on MariaDB repeat until the answer fits, because it comes from a copy.

    The server renews the copy after 0.1 s without a read: see tests/support/waits.py.
    """
    found = ask()
    for _ in range(80 if database.name == "mariadb" else 0):
        if fits(found):
            break
        threading.Event().wait(0.12)
        found = ask()
    return found


def wait_until_reported(database: Database, *holders: Actor[Any]) -> None:
    """Return when the copy that MariaDB answers from lists the locks of these actors."""
    if database.name != "mariadb":
        return
    query = sa.text(
        "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_rows_locked > 0"
    )
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        mine = ids(*holders)

        def ask() -> set[int]:
            return set(connection.scalars(query))

        assert up_to_date(database, ask, mine.issubset) >= mine
    engine.dispose()


def insert_order_77(session: LockingSession) -> None:
    """Hold a row that no other session has seen, by a lock that InnoDB has not recorded."""
    session.add(Order(id=77, total=0))
    session.flush()


def lock_table(session: LockingSession) -> None:
    """Lock all others out of the orders."""
    _run(session, 0)


def unlock_table(session: LockingSession) -> None:
    """Unlock the orders; on PostgreSQL the end of the transaction does."""
    _run(session, 1)
    session.rollback()


def _run(session: LockingSession, number: int) -> None:
    connection = session.connection()
    mariadb = getattr(connection.dialect, "is_mariadb", False)
    name = "mariadb" if mariadb else connection.dialect.name
    connection.execute(sa.text(_LOCK_TABLE[name][number]))
