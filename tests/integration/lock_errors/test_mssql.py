"""SQL Server's rows of docs/errors.md: a scripted driver raises the number in each place.

That the server raises it when the row says so, and what it leaves, is Microsoft's word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import InvalidRequestError

from sa_doclock import DocLockError, LockingSession, LockOptions
from sa_doclock.dialects.base import Ends
from sa_doclock.dialects.mssql import SQLServerLocks
from tests.integration.lock_errors.rows import MSSQL, Left, Row, Where
from tests.sql.models import Customer, Order
from tests.sql.native import odbc18
from tests.sql.script import Script
from tests.sql.servers import serving
from tests.support.rows import rows


@pytest.fixture
def scripted() -> Iterator[tuple[LockingSession, Script]]:
    """Open a session on a scripted server, in a transaction that has read something."""
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        session.begin()
        session.get(Customer, 1)
        yield session, script


def attempt(session: LockingSession, where: Where) -> None:
    if where is Where.LOCK:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    elif where is Where.STATEMENT:
        session.execute(update(Order).values(total=7))
    else:
        session.get_one(Order, 1).total = 7
        session.flush()


@rows("savepoint", [False, True])
@rows(
    "row, where",
    [(row, where) for row in MSSQL for where in row.where],
    ids=lambda one: str(one.number) if isinstance(one, Row) else one.value,
)
def test_mssql(
    scripted: tuple[LockingSession, Script], row: Row, where: Where, savepoint: bool
) -> None:
    session, script = scripted
    inner = session.begin_nested() if savepoint else None
    mark = "FROM shop_order" if where is Where.LOCK else "UPDATE shop_order"
    failure = odbc18(int(row.number))
    script.failures.append((mark, failure))
    with pytest.raises(DocLockError) as caught:
        attempt(session, where)
    assert type(caught.value) is row.error
    assert caught.value.retryable is row.do.retryable
    assert refuses(session) is (where is not Where.STATEMENT or row.left is Left.GONE)
    if inner is not None and row.left is not Left.GONE:
        inner.rollback()
        assert not refuses(session)
    elif inner is not None:
        with suppress(row.error):  # there is no savepoint any more
            inner.rollback()
        assert refuses(session)
    session.rollback()
    session.begin()  # as the fixture gives it
    session.get(Customer, 1)
    assert not refuses(session)


def refuses(session: LockingSession) -> bool:
    """Return whether the session lets nothing more through."""
    try:
        session.scalars(select(Customer.name)).all()
    except InvalidRequestError:  # PendingRollbackError is one
        return True
    return False


@rows("row", MSSQL, ids=lambda row: str(row.number))
def test_nothing_is_left_of_a_transaction_that_the_strategy_calls_gone(row: Row) -> None:
    gone = SQLServerLocks.errors[row.number].ends is Ends.TRANSACTION
    assert (row.left is Left.GONE) is gone
