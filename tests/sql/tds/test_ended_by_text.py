"""COMMIT and ROLLBACK by text give up the locks: the session asks whose transaction it is.

CURRENT_TRANSACTION_ID() needs no privilege.  The question is asked once, before the next flush,
lock or commit; then nothing is sent that would be saved without the lock.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from sa_doclock import LockingSession, LockLost, LockMisuse, LockOptions
from tests.sql.models import Customer, Order
from tests.sql.tds.server import TDSServer, said

ForUpdate = LockOptions.ForUpdate
by_text = pytest.mark.parametrize(
    "sql", ["COMMIT; BEGIN TRANSACTION", "ROLLBACK; BEGIN TRANSACTION"]
)
QUESTION = "CURRENT_TRANSACTION_ID"


@by_text
def test_nothing_is_saved(session: LockingSession, wire: TDSServer, sql: str) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text(sql))
    order.total = 9
    wire.sent.clear()
    with pytest.raises(LockLost):
        session.commit()
    assert said(wire, "UPDATE shop_order") == []
    assert len(said(wire, QUESTION)) == 1


@by_text
def test_the_lock_is_listed_no_more(session: LockingSession, sql: str) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text(sql))
    assert not session.held_locks


def test_what_leaves_the_transaction_alone_loses_nothing(
    session: LockingSession, wire: TDSServer
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text("SELECT 1"))
    order.total = 9
    session.commit()
    assert len(said(wire, "UPDATE shop_order")) == 1


def test_without_text_nothing_is_asked(session: LockingSession, wire: TDSServer) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    wire.sent.clear()
    session.get_one(Customer, 1)
    order.total = 9
    session.commit()
    assert said(wire, QUESTION) == []


def test_another_database_is_noticed_and_the_first_one_back_is_right(
    session: LockingSession, wire: TDSServer
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text("USE other"))
    order.total = 9
    for _ in range(2):
        with pytest.raises(LockMisuse, match=r"'other\.dbo', and was 'shop\.dbo'"):
            session.flush()
    with pytest.raises(LockMisuse):
        session.get_entity(Order, 2, ForUpdate)
    assert said(wire, "UPDATE shop_order") == []
    with session.no_autoflush:
        session.execute(text("USE shop"))
    session.commit()
    assert len(said(wire, "UPDATE shop_order")) == 1
