"""Headers that an INSERT statement of this transaction has made need no lock."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Memo, Note, Order
from tests.integration.guard.steps import Action, hold, refused

pytestmark = pytest.mark.quick

MEMOS: Any = Memo.__table__
ORDERS: Any = Order.__table__


def run(statement: Any, parameters: Any = None) -> Action:
    return lambda session: session.execute(statement, parameters)


NEW: dict[str, Action] = {
    "values": run(sa.insert(Order).values(id=9)),
    "several values": run(sa.insert(Order).values([{"id": 8}, {"id": 9}])),
    "parameters": run(sa.insert(Order), [{"id": 8}, {"id": 9}]),
    "table": run(sa.insert(ORDERS).values(id=9, total=0)),
    "mappings": lambda session: session.bulk_insert_mappings(Order, [{"id": 9}]),
}


@pytest.mark.parametrize("action", NEW.values(), ids=NEW)
def test_a_header_inserted_by_a_statement_is_a_new_document(
    session: LockingSession, action: Action
) -> None:
    action(session)
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


def returning(session: LockingSession) -> Any:
    return session.execute(sa.insert(Memo).values(total=1).returning(Memo.id)).scalar_one()


def returning_scalar(session: LockingSession) -> Any:
    return session.scalar(sa.insert(Memo).values(total=1).returning(Memo.id))


def returning_scalars(session: LockingSession) -> Any:
    rows = [{"total": 1}, {"total": 2}]
    return session.scalars(sa.insert(Memo).returning(Memo.id), rows).all()[-1]


def returning_more(session: LockingSession) -> Any:
    statement = sa.insert(MEMOS).values(total=1).returning(MEMOS.c.total, MEMOS.c.id.label("key"))
    ((_, key),) = session.execute(statement).all()
    return key


def returning_column_of_table(session: LockingSession) -> Any:
    return session.scalar(sa.insert(Memo).values(total=1).returning(MEMOS.c.id))


def returning_attribute_of_class(session: LockingSession) -> Any:
    return session.scalar(sa.insert(MEMOS).values(total=1).returning(Memo.id.label("key")))


def returning_entity(session: LockingSession) -> Any:
    rows = session.execute(sa.insert(Memo).values(total=1).returning(Memo, Memo.total)).all()
    return rows[0][0].id


def returning_entities(session: LockingSession) -> Any:
    rows = [{"total": 1}, {"total": 2}]
    return session.scalars(sa.insert(Memo).returning(Memo), rows).all()[-1].id


def inserted_primary_key(session: LockingSession) -> Any:
    result: Any = session.execute(sa.insert(MEMOS).values(total=1))
    return result.inserted_primary_key[0]


def inserted_primary_key_of_class(session: LockingSession) -> Any:
    result: Any = session.execute(sa.insert(Memo).values(total=1))
    return result.inserted_primary_key[0]


def return_defaults(session: LockingSession) -> Any:
    rows: list[dict[str, Any]] = [{"total": 1}, {"total": 2}]
    session.bulk_insert_mappings(Memo, rows, return_defaults=True)
    return rows[1]["id"]


def saved_objects(session: LockingSession) -> Any:
    memos = [Memo(total=1), Memo(total=2)]
    session.bulk_save_objects(memos, return_defaults=True)
    return memos[1].id


RETURNING = (
    returning,
    returning_scalar,
    returning_scalars,
    returning_more,
    returning_column_of_table,
    returning_attribute_of_class,
    returning_entity,
    returning_entities,
)
GIVEN: dict[str, Action] = {
    one.__name__: one
    for one in (
        *RETURNING,
        inserted_primary_key,
        inserted_primary_key_of_class,
        return_defaults,
        saved_objects,
    )
}


@pytest.mark.parametrize("action", GIVEN.values(), ids=GIVEN)
def test_a_header_whose_key_the_database_gives_is_a_new_document(
    session: LockingSession, action: Action
) -> None:
    if action in RETURNING and not session.connection().dialect.insert_returning:
        pytest.skip("MySQL has no INSERT .. RETURNING")
    ident = action(session)
    assert isinstance(ident, int)
    session.execute(sa.insert(Note).values(memo_id=ident))
    session.add(Note(memo_id=ident))
    session.get_one(Memo, ident).total = 7
    session.commit()
    memo = session.get_one(Memo, ident)
    memo.total = 8
    with refused(session, Memo, ident):
        session.flush()


def test_a_header_with_the_databases_key_can_be_locked(session: LockingSession) -> None:
    result: Any = session.execute(sa.insert(MEMOS).values(total=1))
    (ident,) = result.inserted_primary_key
    memo = hold(session, Memo, ident)
    session.execute(sa.insert(Note).values(memo_id=ident))
    session.commit()
    assert memo
