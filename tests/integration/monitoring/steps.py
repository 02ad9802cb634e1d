"""The actions of the tests of this folder, in their words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from sa_doclock import LockConnection, LockingSession, LockNotAvailable, LockOptions, LockWait
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order

T = TypeVar("T")

ON_SERVERS = pytest.mark.databases("postgresql", "mysql", "mariadb")
NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait

#: Whether the server knows who holds a row that nobody waits for.
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
    """Ask for what another holds; return the error.  Without keys: for all that there is."""
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
    """Ask for what another holds, in a transaction that is over then; return who is reported."""
    found = refused(session, entity, *idents, **how).blockers
    session.rollback()
    by_id = {one.connection_id: one for one in found}
    assert list(by_id) == sorted(by_id)
    return by_id


def ids(*actors: Actor[Any]) -> set[int]:
    """Return how the server calls the connections of these actors."""
    return {actor.connection_id() for actor in actors}


def among(waits: list[LockWait], *actors: Actor[Any]) -> list[LockWait]:
    """Leave out who waits elsewhere on the server."""
    mine = ids(*actors)
    return [wait for wait in waits if wait.waiter.connection_id in mine]


def up_to_date(database: Database, ask: Callable[[], T], fits: Callable[[T], object]) -> T:
    """Ask; on MariaDB again, until the answer fits: it comes from a copy.

    The server renews it when nobody has read it for 0.1 s: see tests/support/waits.py.
    """
    found = ask()
    for _ in range(80 if database.name == "mariadb" else 0):
        if fits(found):
            break
        threading.Event().wait(0.12)
        found = ask()
    return found


def wait_until_reported(database: Database, *holders: Actor[Any]) -> None:
    """Return when the copy that MariaDB answers from has the locks of these actors."""
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
    """Hold a row that nobody else has seen, by a lock that InnoDB has not written down."""
    session.add(Order(id=77, total=0))
    session.flush()


def lock_table(session: LockingSession) -> None:
    """Keep everybody out of the orders."""
    _run(session, 0)


def unlock_table(session: LockingSession) -> None:
    """Let them in again; on PostgreSQL the end of the transaction does."""
    _run(session, 1)
    session.rollback()


def _run(session: LockingSession, number: int) -> None:
    connection = session.connection()
    mariadb = getattr(connection.dialect, "is_mariadb", False)
    name = "mariadb" if mariadb else connection.dialect.name
    connection.execute(sa.text(_LOCK_TABLE[name][number]))
