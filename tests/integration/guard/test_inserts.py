"""INSERT statements: of parts under the lock, of new documents without one."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.guard.models import (
    Entry,
    Line,
    Memo,
    Order,
    Plan,
    Step,
    Tax,
    Voucher,
    order_tag,
)
from tests.integration.guard.steps import Action, hold, refused, writes_sent

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
