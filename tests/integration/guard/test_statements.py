"""UPDATE and DELETE statements need the locks of all documents that they touch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import selectinload

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, atomic_update
from tests.integration.guard.models import (
    Contract,
    Customer,
    Entry,
    Lease,
    Line,
    Order,
    Plan,
    Step,
    Tag,
    Tax,
    Terms,
    Voucher,
    order_tag,
)
from tests.integration.guard.steps import Action, hold, refused, writes_sent
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick


LINES: Any = Line.__table__
ORDERS: Any = Order.__table__
LEASES: Any = Lease.__table__


class Case(NamedTuple):
    action: Action
    touched: tuple[Any, ...]  # the keys of the documents that the statement touches
    entity: type[Any] = Order


def run(statement: Any, parameters: Any = None) -> Action:
    return lambda session: session.execute(statement, parameters)


def query(make: Callable[[LockingSession], Any]) -> Action:
    return make


CASES: dict[str, Case] = {
    "headers": Case(run(sa.update(Order).where(Order.id == 1).values(total=31)), (1,)),
    "all headers": Case(run(sa.update(Order).values(total=Order.total + 1)), (1, 2)),
    "parts": Case(run(sa.update(Line).where(Line.value > 15).values(value=0)), (1,)),
    "all parts": Case(run(sa.update(Line).values(value=0)), (1, 2)),
    "parts of parts": Case(run(sa.update(Tax).where(Tax.rate > 10).values(rate=0)), (2,)),
    "ordered": Case(run(sa.update(Line).where(Line.id == 1).ordered_values((Line.value, 1))), (1,)),
    "by subquery": Case(
        run(
            sa.update(Line)
            .where(Line.order_id.in_(sa.select(Order.id).where(Order.total > 20)))
            .values(value=0)
        ),
        (1,),
    ),
    "by bound value": Case(
        run(sa.update(Line).where(Line.id == sa.bindparam("which")).values(value=0), {"which": 3}),
        (2,),
    ),
    "by bound values in a tuple": Case(
        run(
            sa.update(Line).where(Line.id == sa.bindparam("which")).values(value=0), ({"which": 3},)
        ),
        (2,),
    ),
    "by bound values of Core": Case(
        run(
            sa.update(Line)
            .where(Line.id == sa.bindparam("which"))
            .values(value=0)
            .execution_options(dml_strategy="core_only", synchronize_session=False),
            [{"which": 3}],
        ),
        (2,),
    ),
    "by primary key": Case(
        run(sa.update(Line), [{"id": 1, "value": 0}, {"id": 3, "value": 0}]), (1, 2)
    ),
    "one by primary key": Case(run(sa.update(Order), [{"id": 2, "total": 0}]), (2,)),
    "moved here": Case(run(sa.update(Line).where(Line.id == 3).values(order_id=1)), (1, 2)),
    "moved to a bound value": Case(
        run(
            sa.update(LINES).where(LINES.c.id == 3).values(order_no=sa.bindparam("which")),
            {"which": 1},
        ),
        (1, 2),
    ),
    "moved by primary key": Case(run(sa.update(Line), [{"id": 3, "order_id": 1}]), (1, 2)),
    "moved by parameters": Case(
        run(
            sa.update(LINES).where(LINES.c.id == sa.bindparam("which")),
            [{"which": 3, "order_no": 1}],
        ),
        (1, 2),
    ),
    "delete parts": Case(run(sa.delete(Tax).where(Tax.id == 3)), (2,)),
    "delete all parts": Case(run(sa.delete(Tax)), (1, 2)),
    "table": Case(run(LINES.update().where(LINES.c.value > 15).values(value=0)), (1,)),
    "table of headers": Case(run(ORDERS.update().values(total=0)), (1, 2)),
    "table moved": Case(run(LINES.update().where(LINES.c.id == 3).values(order_no=1)), (1, 2)),
    "table with attributes": Case(run(sa.update(LINES).where(Line.id == 3).values(value=0)), (2,)),
    "association": Case(run(sa.delete(order_tag).where(order_tag.c.tag_id == 2)), (2,)),
    "association, all": Case(run(sa.delete(order_tag)), (1, 2)),
    "association moved": Case(
        run(sa.update(order_tag).where(order_tag.c.tag_id == 2).values(order_id=1)), (1, 2)
    ),
    "many-to-many": Case(run(sa.update(Tag).where(Tag.id == 1).values(name="x")), (1, 2)),
    "query": Case(query(lambda s: s.query(Line).filter(Line.id == 3).update({"value": 0})), (2,)),
    "query by attribute": Case(
        query(lambda s: s.query(Line).filter(Line.id == 3).update({Line.order_id: 1})), (1, 2)
    ),
    "query delete": Case(query(lambda s: s.query(Tax).filter_by(id=3).delete()), (2,)),
    "composite": Case(
        run(sa.update(Entry).where(Entry.value > 9).values(value=0)), ((2024, 1),), Voucher
    ),
    "composite moved": Case(
        run(sa.update(Entry).where(Entry.id == 1).values(year=2024, number=2)),
        ((2024, 1), (2024, 2)),
        Voucher,
    ),
    "subclass": Case(run(sa.update(Lease).values(rent=0)), (1,), Contract),
    "table of a subclass": Case(run(sa.update(LEASES).values(rent=0)), (1,), Contract),
    "base class": Case(run(sa.update(Contract).values(total=0)), (1, 2), Contract),
    "part referred to": Case(run(sa.update(Terms).values(text="x")), (1, 2), Contract),
    "recursive": Case(run(sa.update(Step).where(Step.id == 111).values(value=0)), (1,), Plan),
    "recursive, all": Case(run(sa.update(Step).values(value=0)), (1, 2), Plan),
    "recursive, moved": Case(
        run(sa.update(Step).where(Step.id == 111).values(parent_id=2)), (1, 2), Plan
    ),
    "detached": Case(run(sa.update(Step).where(Step.id == 1).values(plan_id=None)), (1,), Plan),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_without_the_locks_it_is_refused(session: LockingSession, case: Case) -> None:
    with writes_sent(session) as sent, pytest.raises(UnlockedWrite):
        case.action(session)
    assert sent == []


@pytest.mark.parametrize("rows", [({"id": 1},), [{"id": 1}]], ids=["tuple", "core_only"])
def test_rows_that_sqlalchemy_does_not_find_by_their_key(
    session: LockingSession, rows: Any
) -> None:
    held = hold(session, Order, 1)
    strategy = "auto" if isinstance(rows, tuple) else "core_only"
    options = {"dml_strategy": strategy, "synchronize_session": False}
    with refused(session, Order, 2):  # it would give line 3 this key
        session.execute(sa.update(Line).where(Line.id == 3), rows, execution_options=options)
    assert held


@each_case
def test_each_single_lock_is_needed(session: LockingSession, case: Case) -> None:
    for missing in case.touched:
        held = hold(session, case.entity, *(one for one in case.touched if one != missing))
        with refused(session, case.entity, missing, "by a statement"):
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


def test_an_alias_of_a_table_is_no_way_around(session: LockingSession) -> None:
    lines = LINES.alias("q")
    statement = sa.update(lines).where(lines.c.id == 1).values(value=0)
    with writes_sent(session) as sent, pytest.raises(UnlockedWrite):
        session.execute(statement)
    assert sent == []


def test_a_statement_that_touches_no_row_needs_no_lock(session: LockingSession) -> None:
    session.execute(sa.update(Line).where(Line.id == 99).values(value=0))
    session.execute(sa.delete(Order).where(Order.id == 99))
    session.execute(sa.delete(LINES).where(LINES.c.id == 99))
    session.commit()


def test_an_expression_as_the_foreign_key_is_refused_whatever_is_held(
    session: LockingSession,
) -> None:
    held = hold(session, Order, 1, 2)
    one = sa.select(sa.func.min(Order.id)).scalar_subquery()
    for statement in (
        sa.update(Line).where(Line.id == 3).values(order_id=one),
        sa.update(LINES).where(LINES.c.id == 3).values(order_no=LINES.c.order_no - 1),
    ):
        with refused(session, Order, None, "order_id"):
            session.execute(statement)
    assert held


def test_a_literal_is_a_plain_value(session: LockingSession) -> None:
    held = hold(session, Order, 1, 2)
    session.execute(sa.update(Line).where(Line.id == 3).values(order_id=sa.literal(1)))
    session.commit()
    assert held


@pytest.mark.databases("postgresql", "sqlite", "sqlite-journal")
def test_what_a_statement_returns_is_no_way_around(session: LockingSession) -> None:
    changed = sa.update(Line).where(Line.id == 1).values(value=0).returning(Line)
    for run_it in (session.scalars, session.scalar, session.execute):
        with refused(session, Order, 1):
            run_it(changed)
    held = hold(session, Order, 1)
    assert session.scalars(changed).one().value == 0
    session.commit()
    assert held


def test_headers_are_deleted_under_their_locks(session: LockingSession) -> None:
    with refused(session, Contract, 1):
        session.execute(sa.delete(Lease))
    with refused(session, Voucher, (2024, 1)):
        session.execute(sa.delete(Voucher).where(Voucher.number == 1))
    held = hold(session, Voucher, (2024, 1))
    session.execute(sa.delete(Entry).where(Entry.number == 1))
    session.execute(sa.delete(Voucher).where(Voucher.number == 1))
    session.commit()
    assert held


# --------------------------------------------------------------------------------------------------
# Layers between a statement and its rows do not hide the write.


def test_what_is_pending_is_flushed_before_the_database_is_asked(session: LockingSession) -> None:
    customer = session.get_one(Customer, 1)
    customer.name = "Zoe"
    of_zoe = sa.select(Customer.id).where(Customer.name == "Zoe")
    with pytest.raises(UnlockedWrite):
        session.execute(sa.update(Order).where(Order.customer_id.in_(of_zoe)).values(total=0))
    assert customer not in session.dirty


@pytest.mark.databases("postgresql", "sqlite")  # they have UPDATE .. RETURNING
def test_what_an_update_returns_through_a_select_is_written_too(session: LockingSession) -> None:
    update = sa.update(Line).where(Line.id == 1).values(value=0).returning(Line)
    statement = sa.select(Line).from_statement(update)
    with writes_sent(session) as sent, pytest.raises(UnlockedWrite):
        session.scalars(statement).all()
    assert sent == []
    held = hold(session, Order, 1)
    assert [line.value for line in session.scalars(statement)] == [0]
    assert held


@pytest.mark.databases("postgresql", "sqlite")
def test_a_document_that_an_insert_returns_is_new(session: LockingSession) -> None:
    order = session.scalars(
        sa.insert(Order).values(id=sa.literal(4) + 5, total=1).returning(Order)
    ).one()
    order.total = 2
    session.flush()


@pytest.mark.databases("postgresql", "sqlite")
def test_a_key_that_is_an_expression_is_new(session: LockingSession) -> None:
    highest = sa.select(sa.func.max(Order.id) + 1).scalar_subquery()
    order = Order(id=highest, total=0)
    session.add(order)
    session.flush()


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy])
def test_an_object_can_be_pickled(session: LockingSession, how: Callable[[Any], Any]) -> None:
    options = [selectinload(Order.lines)]
    order = session.get_one(Order, 1, options=options)
    assert how(order)
    if how is pickle.dumps:
        assert len(pickle.loads(pickle.dumps(order)).lines) == 2


@pytest.mark.databases("sqlite")  # it always has the schema "main"
def test_the_rows_are_read_from_the_schema_of_the_statement(session: LockingSession) -> None:
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    update = sa.update(Line).where(Line.id == 1).values(value=0)
    bind = session.get_bind()
    sa.event.listen(bind, "before_cursor_execute", note)
    try:
        with pytest.raises(UnlockedWrite):
            session.execute(update.execution_options(schema_translate_map={None: "main"}))
    finally:
        sa.event.remove(bind, "before_cursor_execute", note)
    (select,) = [statement for statement in sent if statement.startswith("SELECT")]
    assert f"FROM main.{Line.__tablename__}" in select


# --------------------------------------------------------------------------------------------------
# atomic_update(): a relative UPDATE of headers needs no locks, and waits for a lock holder.

ADDS = sa.update(Order).where(Order.id == 1, Order.total >= 30).values(total=Order.total + 5)


def test_it_needs_no_lock(session: LockingSession, stored: Callable[[Any, Any], Any]) -> None:
    with refused(session, Order, 1):
        session.execute(ADDS)
    result: Any = session.execute(atomic_update(ADDS))
    assert result.rowcount == 1
    session.commit()
    assert stored(Order.total, 1) == 35
    assert session.execute(atomic_update(ADDS.where(Order.id == 7))).rowcount == 0  # type: ignore[attr-defined]


def test_a_value_is_refused() -> None:
    for values in ({"total": 5}, {Order.total: sa.literal(5)}, {}):
        with pytest.raises(ValueError, match="SQL expression"):
            atomic_update(sa.update(Order).values(values))
    with pytest.raises(TypeError):
        atomic_update(sa.delete(Order))  # type: ignore[type-var]


def test_of_parts_keys_and_given_values_it_is_guarded(session: LockingSession) -> None:
    with refused(session, Order, 1):
        session.execute(atomic_update(sa.update(Line).filter_by(id=1).values(value=Line.value + 1)))
    with refused(session, Order, 1):
        session.execute(atomic_update(sa.update(Order).filter_by(id=1).values(id=Order.id + 100)))
    given = sa.update(Order).where(Order.id == 2).values(total=Order.total + sa.bindparam("more"))
    with refused(session, Order, 2):
        session.execute(atomic_update(given), {"more": 1, "customer_id": 2})


def _locks(session: LockingSession) -> Order:
    return session.get_one_entity(Order, 1, LockOptions.ForUpdate)


def _saves(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 40
    session.save_changes()


def _adds(session: LockingSession) -> None:
    session.execute(atomic_update(ADDS))
    session.commit()


def test_it_waits_for_who_holds_the_document(
    documents: Database,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    stored: Callable[[Any, Any], Any],
) -> None:
    held = alice.does(_locks)
    added = bob.starts(_adds)
    wait_until_blocked(waiter=bob, holder=alice, step=added)
    alice.does(_saves)
    added.result()
    assert stored(Order.total, 1) == 45
    assert documents
    assert held
