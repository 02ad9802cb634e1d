"""Savepoints of a session that have ended with the transaction, by a statement of the program.

SQLAlchemy stops at the first of them that the server refuses.  The session rolls back all that is
left, so that no connection stays out of its pool.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.support.models import Customer, Order

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Use = Callable[[Session], object]


def text(*statements: str) -> Use:
    return lambda session: [session.execute(sa.text(one)) for one in statements]


def leave_block(session: Session) -> None:
    with session:
        pass


WAYS: dict[str, Use] = {
    "COMMIT": text("COMMIT"),
    "ROLLBACK": text("ROLLBACK"),
    "of the Connection": lambda session: session.connection().execute(sa.text("COMMIT")),
    "of the driver": lambda session: session.connection().connection.commit(),
}
OTHERS: dict[str, Use] = {"COMMIT and BEGIN": text("COMMIT", "BEGIN")}
DDL: dict[str, Use] = {"DDL": text("CREATE TABLE IF NOT EXISTS lk_customer (id INT)")}
ENDS: dict[str, Use] = {
    "close": lambda session: session.close(),
    "rollback": lambda session: session.rollback(),
    "reset": lambda session: session.reset(),
    "invalidate": lambda session: session.invalidate(),
    "block": leave_block,
}
FAILURES: dict[str, Use] = {
    "commit": lambda session: session.commit(),
    "commit of the savepoint": lambda session: session.begin_nested().commit(),
    "rollback of the savepoint": lambda session: session.begin_nested().rollback(),
}


def lose(session: Session, way: Use, depth: int) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    for _ in range(depth):
        session.begin_nested()
        session.scalar(sa.select(Customer.id))
    way(session)


def check_ended(session: Session, engine: sa.Engine) -> None:
    assert not session.in_transaction()
    assert not session.held_locks
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    session.get_one_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    session.close()


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_session_ends(engine: sa.Engine, way: str, end: str, depth: int) -> None:
    session = Session(engine)
    lose(session, WAYS[way], depth)
    with pytest.raises(LockLost, match="Order 1: ") as caught:
        ENDS[end](session)
    assert isinstance(caught.value.__cause__, engine.dialect.loaded_dbapi.Error)
    check_ended(session, engine)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("end", ENDS)
def test_a_statement_that_commits_by_itself(engine: sa.Engine, end: str) -> None:
    session = Session(engine)
    lose(session, DDL["DDL"], 2)
    with pytest.raises(LockLost, match="Order 1: "):
        ENDS[end](session)
    check_ended(session, engine)


@pytest.mark.parametrize("end", ENDS)
def test_another_transaction_has_begun(engine: sa.Engine, end: str) -> None:
    session = Session(engine)
    lose(session, OTHERS["COMMIT and BEGIN"], 2)
    with pytest.raises(DBAPIError):
        ENDS[end](session)
    check_ended(session, engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", FAILURES)
def test_close_after_a_failure(engine: sa.Engine, failure: str, way: str) -> None:
    session = Session(engine)
    lose(session, WAYS[way], 2)
    with suppress(DBAPIError):
        FAILURES[failure](session)
    with suppress(SQLAlchemyError):
        session.close()
    check_ended(session, engine)


def test_nothing_was_locked(engine: sa.Engine) -> None:
    session = Session(engine)
    for _ in range(2):
        session.begin_nested()
        session.scalar(sa.select(Customer.id))
    text("COMMIT")(session)
    with pytest.raises(DBAPIError) as caught:
        session.close()
    assert not isinstance(caught.value, LockLost)
    check_ended(session, engine)
