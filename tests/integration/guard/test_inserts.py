"""INSERT statements: of parts under the lock, of new documents without a lock."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError

from sa_doclock import LockingSession
from tests.integration.guard.models import (
    Entry,
    Line,
    Memo,
    Note,
    Order,
    Plan,
    Step,
    Tax,
    Voucher,
    order_tag,
)
from tests.integration.guard.steps import Action, count, hold, refused, writes_sent

pytestmark = pytest.mark.quick


LINES: Any = Line.__table__
MEMOS: Any = Memo.__table__
ORDERS: Any = Order.__table__


class Case(NamedTuple):
    action: Action
    touched: tuple[Any, ...]
    entity: type[Any] = Order


def run(statement: Any, parameters: Any = None) -> Action:
    return lambda session: session.execute(statement, parameters)


ROWS = [{"id": 8, "order_id": 1}, {"id": 9, "order_id": 2}]
COLUMNS = [{"id": 8, "order_no": 1}, {"id": 9, "order_no": 2}]
CASES: dict[str, Case] = {
    "values": Case(run(sa.insert(Line).values(id=9, order_id=1)), (1,)),
    "values by attribute": Case(run(sa.insert(Line).values({Line.id: 9, Line.order_id: 2})), (2,)),
    "bound value": Case(
        run(sa.insert(Line).values(id=9, order_id=sa.bindparam("which")), {"which": 2}), (2,)
    ),
    "bound values of a table": Case(
        run(
            sa.insert(LINES).values(id=sa.bindparam("one"), order_no=sa.bindparam("which")),
            [{"one": 7 + which, "which": which} for which in (1, 2)],
        ),
        (1, 2),
    ),
    "several values": Case(run(sa.insert(Line).values(ROWS)), (1, 2)),
    "parameters": Case(run(sa.insert(Line), ROWS), (1, 2)),
    "one parameter": Case(run(sa.insert(Line), ROWS[0]), (1,)),
    "values and parameters": Case(run(sa.insert(Line).values(order_id=2), {"id": 9}), (2,)),
    "part of a part": Case(run(sa.insert(Tax).values(id=9, line_id=3)), (2,)),
    "table": Case(run(sa.insert(LINES).values(id=9, order_no=1)), (1,)),
    "table by column": Case(
        run(sa.insert(LINES).values({LINES.c.id: 9, LINES.c.order_no: 2})), (2,)
    ),
    "table, several": Case(run(sa.insert(LINES).values(COLUMNS)), (1, 2)),
    "table, tuples": Case(run(sa.insert(LINES).values([(8, 1, 0), (9, 2, 0)])), (1, 2)),
    "table, one tuple": Case(run(sa.insert(LINES).values((9, 2, 0))), (2,)),
    "table, parameters": Case(run(sa.insert(LINES), COLUMNS), (1, 2)),
    "association": Case(run(sa.insert(order_tag).values(order_id=1, tag_id=3)), (1,)),
    "association, parameters": Case(
        run(sa.insert(order_tag), [{"order_id": one, "tag_id": 3} for one in (1, 2)]), (1, 2)
    ),
    "composite": Case(
        run(sa.insert(Entry).values(id=9, year=2024, number=2)), ((2024, 2),), Voucher
    ),
    "recursive": Case(run(sa.insert(Step).values(id=9, parent_id=111)), (1,), Plan),
    "recursive, from the top": Case(run(sa.insert(Step).values(id=9, plan_id=2)), (2,), Plan),
    "null beside": Case(run(sa.insert(Step).values(id=9, plan_id=2, parent_id=None)), (2,), Plan),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_each_lock_is_needed(session: LockingSession, case: Case) -> None:
    for missing in case.touched:
        held = hold(session, case.entity, *(one for one in case.touched if one != missing))
        with refused(session, case.entity, missing, "inserted", "by a statement"):
            case.action(session)
        session.rollback()
        assert len(held) == len(case.touched) - 1


@each_case
def test_with_all_of_them_it_goes_through(session: LockingSession, case: Case) -> None:
    held = hold(session, case.entity, *case.touched)
    with writes_sent(session) as sent:
        case.action(session)
    session.commit()
    assert sent
    assert held


def test_an_empty_list_of_parameters_is_one_execution(session: LockingSession) -> None:
    with refused(session, Order, 2):
        session.execute(sa.insert(Line).values(id=9, order_id=2), [])


@pytest.mark.databases("postgresql", "sqlite", "sqlite-journal", "mariadb")
def test_what_an_insert_returns_is_no_way_around(session: LockingSession) -> None:
    statement = sa.insert(Line).returning(Line)
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.scalars(statement, ROWS)
    held += hold(session, Order, 2)
    assert {line.id for line in session.scalars(statement, ROWS)} == {8, 9}
    session.commit()
    assert held


@pytest.mark.parametrize("held", [(), (1, 2)])
def test_what_does_not_tell_its_documents_is_refused(
    session: LockingSession, held: tuple[int, ...]
) -> None:
    kept = hold(session, Order, *held)
    least = sa.select(sa.func.min(Order.id)).scalar_subquery()
    with refused(session, Order, None, "order_id"):
        session.execute(sa.insert(Line).values(id=9, order_id=least))
    with session.unguarded():
        session.execute(sa.insert(Line).values(id=9, order_id=least))
    assert len(kept) == len(held)


# --------------------------------------------------------------------------------------------------
# INSERT .. FROM SELECT is allowed under the locks of the documents that its SELECT names.

NAMES = ["id", "order_no", "value"]


def copied(*where: Any) -> Any:
    """Return an INSERT that copies lines, which stay in their orders."""
    return sa.insert(Line).from_select(
        NAMES, sa.select(Line.id + 10, Line.order_id, Line.value).where(*where)
    )


def test_without_the_lock_it_is_refused(session: LockingSession) -> None:
    with refused(session, Order, 1, "inserted", "by a statement"):
        session.execute(copied(Line.id == 1))
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(copied())
    assert held


def test_with_the_locks_it_goes_through(session: LockingSession) -> None:
    held = hold(session, Order, 1, 2)
    session.execute(copied())
    session.execute(
        sa.insert(LINES).from_select(NAMES, sa.select(sa.literal(50), sa.literal(1), sa.literal(5)))
    )
    session.commit()
    assert held
    assert count(session, Line) == 7


def test_a_select_of_no_row_needs_no_lock(session: LockingSession) -> None:
    session.execute(copied(Line.id == 99))
    session.commit()


def test_bound_values_are_those_of_the_execution(session: LockingSession) -> None:
    rows = sa.select(LINES.c.id + 10, LINES.c.order_no, LINES.c.value)
    which = LINES.c.id == sa.bindparam("which")
    statement = sa.insert(LINES).from_select(NAMES, rows.where(which))
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(statement, {"which": 3})
    session.execute(statement, {"which": 2})
    assert held


def test_links_need_the_locks_too(session: LockingSession) -> None:
    links = sa.insert(order_tag).from_select(
        ["order_id", "tag_id"], sa.select(Order.id, sa.literal(3))
    )
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(links)
    held += hold(session, Order, 2)
    session.execute(links)
    session.commit()
    assert held


def test_parts_with_several_owners(session: LockingSession) -> None:
    steps = sa.insert(Step).from_select(
        ["id", "plan_id", "parent_id"],
        sa.select(Step.id + 1000, Step.plan_id, Step.parent_id).where(Step.id.in_((1, 111))),
    )
    with refused(session, Plan, 1):
        session.execute(steps)
    held = hold(session, Plan, 1)
    session.execute(steps)
    session.commit()
    assert held


def test_new_headers_need_no_lock(session: LockingSession) -> None:
    orders = sa.select(Order.id + 10, Order.total, Order.customer_id)
    session.execute(sa.insert(Order).from_select(["id", "total", "customer_id"], orders))
    session.commit()
    assert count(session, Order) == 4


@pytest.mark.databases("sqlite")
def test_one_that_may_overwrite_is_refused(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    lines = sa.select(Line.id, Line.order_id, Line.value).where(Line.order_id == 1)
    statement = sqlite.insert(Line).from_select(NAMES, lines)
    with refused(session, Order, None, "may overwrite"):
        session.execute(statement.on_conflict_do_update(set_={"value": 0}))
    assert held


@pytest.mark.parametrize("union", [False, True])
@pytest.mark.parametrize("literal", [sa.literal_column, sa.text])
def test_a_literal_names_the_document(session: LockingSession, literal: Any, union: bool) -> None:
    rows: list[Any] = [sa.select(literal("60"), literal(number), literal("6")) for number in "12"]
    rows = [sa.union(one, one) for one in rows] if union else rows
    mine, other = (sa.insert(LINES).from_select(NAMES, one) for one in rows)
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(other)
    session.execute(mine)
    session.commit()
    assert held
    assert count(session, Line) == 4


@pytest.mark.databases("sqlite")
def test_a_row_that_is_left_out_of_a_count_that_nobody_knows(session: LockingSession) -> None:
    mine = sa.select(LINES.c.id, LINES.c.order_no, LINES.c.value).where(LINES.c.order_no == 1)
    rows = mine.cte("mine")  # SQLite's driver counts no rows of a statement that begins WITH
    again = sa.insert(LINES).prefix_with("OR IGNORE")
    held = hold(session, Order, 1)
    session.execute(again.from_select(NAMES, sa.select(rows.c.id, rows.c.order_no, rows.c.value)))
    session.commit()
    assert held


# --------------------------------------------------------------------------------------------------
# Headers that this transaction inserted by statement need no lock.

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


@pytest.mark.not_databases("postgresql")  # its transaction is dead after an error
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
