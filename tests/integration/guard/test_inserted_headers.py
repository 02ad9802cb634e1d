"""Headers that an INSERT statement of this transaction has made need no lock."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Memo, Note, Order
from tests.integration.guard.steps import Deed, hold, refused

MEMOS: Any = Memo.__table__
ORDERS: Any = Order.__table__


def run(statement: Any, parameters: Any = None) -> Deed:
    return lambda session: session.execute(statement, parameters)


NEW: dict[str, Deed] = {
    "values": run(sa.insert(Order).values(id=9)),
    "several values": run(sa.insert(Order).values([{"id": 8}, {"id": 9}])),
    "parameters": run(sa.insert(Order), [{"id": 8}, {"id": 9}]),
    "table": run(sa.insert(ORDERS).values(id=9, total=0)),
    "mappings": lambda session: session.bulk_insert_mappings(Order, [{"id": 9}]),
}


@pytest.mark.parametrize("deed", NEW.values(), ids=NEW)
def test_a_header_inserted_by_a_statement_is_a_new_document(
    session: LockingSession, deed: Deed
) -> None:
    deed(session)
    session.execute(sa.insert(Line).values(id=9, order_id=9))
    order = session.get_one(Order, 9)
    order.total = 1
    session.add(Line(id=10, order_id=9))
    session.commit()
    order.total = 2
    with refused(session, Order, 9):
        session.flush()


@pytest.mark.parametrize("entity", [Order, ORDERS])
def test_an_insert_that_failed_makes_no_new_document(session: LockingSession, entity: Any) -> None:
    session.begin()
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(sa.insert(entity), [{"id": 1, "total": 0}])
    line = session.get_one(Line, 1)
    line.value = 11
    with refused(session, Order, 1):
        session.flush()


@pytest.mark.not_databases("postgresql")  # whose transaction is dead after an error
def test_nor_where_the_transaction_goes_on_after_the_error(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    with pytest.raises(IntegrityError):
        session.execute(sa.insert(ORDERS).values(id=1, total=0))
    line.value = 11
    with refused(session, Order, 1):
        session.flush()


def test_an_insert_rolled_back_with_its_savepoint_makes_none(session: LockingSession) -> None:
    session.begin()
    with session.begin_nested() as savepoint:
        session.execute(sa.insert(Order).values(id=9))
        savepoint.rollback()
    with refused(session, Order, 9):
        session.execute(sa.insert(Line).values(id=9, order_id=9))


def test_a_header_with_the_databases_key_can_be_locked(session: LockingSession) -> None:
    result: Any = session.execute(sa.insert(MEMOS).values(total=1))
    (ident,) = result.inserted_primary_key
    memo = hold(session, Memo, ident)
    session.execute(sa.insert(Note).values(memo_id=ident))
    session.commit()
    assert memo
