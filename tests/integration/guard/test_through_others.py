"""Writes to documents through undeclared objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.guard.models import (
    Archive,
    Box,
    Customer,
    Fault,
    Line,
    Order,
    Patient,
    Plan,
    Project,
    Repair,
    Step,
    Ticket,
    Work,
)
from tests.integration.guard.steps import Action as SubclassesAction
from tests.integration.guard.steps import count, hold, refused, writes_sent

pytestmark = pytest.mark.quick


Action = Callable[[LockingSession], object]


def append(session: LockingSession) -> object:
    customer, order = session.get_one(Customer, 2), session.get_one(Order, 1)
    customer.orders.append(order)
    return customer


def remove(session: LockingSession) -> object:
    customer = session.get_one(Customer, 1)
    customer.orders.remove(order := session.get_one(Order, 1))
    return customer, order


def replace(session: LockingSession) -> object:
    customer = session.get_one(Customer, 1)
    customer.orders = [order := session.get_one(Order, 2)]
    return customer, order


def new_customer(session: LockingSession) -> object:
    session.add(customer := Customer(id=9, name="Cleo", orders=[session.get_one(Order, 1)]))
    return customer


def append_plan(session: LockingSession) -> object:
    project, plan = session.get_one(Project, 2), session.get_one(Plan, 1)
    project.plans.append(plan)
    return project


def remove_plan(session: LockingSession) -> object:
    (project := session.get_one(Project, 1)).plans.clear()
    return project


def delete_project(session: LockingSession) -> object:
    session.delete(project := session.get_one(Project, 1))
    return project


def delete_loaded_archive(session: LockingSession) -> object:
    archive = session.get_one(Archive, 1)
    boxes = list(archive.boxes)
    session.delete(archive)
    return archive, boxes


ACTIONS: dict[str, tuple[Action, type]] = {
    "append": (append, Order),
    "remove": (remove, Order),
    "replace": (replace, Order),
    "new": (new_customer, Order),
    "append with delete-orphan": (append_plan, Plan),
    "remove with delete-orphan": (remove_plan, Plan),
    "cascaded delete": (delete_project, Plan),
    "cascaded delete of what is loaded": (delete_loaded_archive, Box),
}
each_action = pytest.mark.parametrize(("action", "entity"), ACTIONS.values(), ids=ACTIONS)


@each_action
def test_it_is_refused_without_the_lock(
    session: LockingSession, action: Action, entity: type[object]
) -> None:
    kept = action(session)
    with refused(session, entity, 1):
        session.flush()
    assert kept


@each_action
def test_it_is_permitted_under_the_lock(
    session: LockingSession, action: Action, entity: type[object]
) -> None:
    held = hold(session, entity, 1)
    kept = action(session)
    with writes_sent(session) as sent:
        session.commit()
    assert sent
    assert all((held, kept))


def test_the_attribute_of_the_other_is_named(session: LockingSession) -> None:
    kept = append(session)
    with refused(session, Order, 1, "Order 1", "changed", "Customer.orders"):
        session.flush()
    assert kept


def delete_customer(session: LockingSession) -> object:
    session.delete(customer := session.get_one(Customer, 1))
    return customer


def delete_customer_with_orders(session: LockingSession) -> object:
    orders = list(session.get_one(Customer, 1).orders)
    return delete_customer(session), orders


@pytest.mark.parametrize("action", [delete_customer, delete_customer_with_orders])
def test_to_delete_what_documents_refer_to_changes_them_all(
    session: LockingSession, action: Action
) -> None:
    for held, missing in ((1, 2), (2, 1)):
        order = hold(session, Order, held)
        kept = action(session)
        with refused(session, Order, missing, "Customer.orders"):
            session.flush()
        assert all((order, kept))
        session.rollback()
    orders = hold(session, Order, 1, 2)
    kept = action(session)
    session.commit()
    assert [order.customer_id for order in orders] == [None, None]
    assert kept


def test_what_the_database_deletes_is_not_looked_at(session: LockingSession) -> None:
    session.delete(session.get_one(Archive, 1))
    with writes_sent(session) as sent:
        session.commit()
    assert len(sent) == 1
    if session.get_bind().dialect.name != "sqlite":  # it enforces no foreign keys
        assert count(session, Box) == 1


def test_a_customer_without_orders_is_deleted_freely(session: LockingSession) -> None:
    session.delete(session.get_one(Customer, 2))
    session.commit()


def test_a_plan_is_deleted_with_the_steps_that_it_cascades_to(session: LockingSession) -> None:
    (plan,) = hold(session, Plan, 2)
    session.delete(plan)
    session.commit()
    assert count(session, Step, Step.plan_id == 2) == 0


def test_a_part_without_an_owner_is_deleted_under_the_lock_alone(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    lines = list(order.lines)
    del order.lines[0]
    with refused(session, Order, 1):
        session.flush()
    session.rollback()
    (order,) = hold(session, Order, 1)
    del order.lines[0]
    session.commit()
    assert count(session, Line, Line.order_id == 1) == 1
    assert sa.inspect(lines[0]).was_deleted or sa.inspect(lines[0]).detached


# --------------------------------------------------------------------------------------------------
# Statements on an undeclared class that has rows of documents.

TICKETS: Any = Ticket.__table__
WORKS: Any = Work.__table__


def run(statement: Any, parameters: Any = None) -> SubclassesAction:
    return lambda session: session.execute(statement, parameters)


ALL: dict[str, SubclassesAction] = {
    "update": run(sa.update(Ticket).values(total=1)),
    "table": run(sa.update(TICKETS).values(total=1)),
    "update by primary key": run(
        sa.update(Ticket), [{"id": ident, "total": 1} for ident in (1, 2, 3)]
    ),
    "query": lambda s: s.query(Ticket).update({"total": 1}),
    "subclass": run(sa.update(Fault).values(total=1)),
    "mappings": lambda s: s.bulk_update_mappings(
        Ticket, [{"id": ident, "total": 1} for ident in (1, 2)]
    ),
    "parts": run(sa.update(Work).where(Work.id < 4).values(hours=1)),
    "parts, table": run(sa.update(WORKS).where(WORKS.c.id < 4).values(hours=1)),
    "parts by primary key": run(sa.update(Work), [{"id": 1, "hours": 1}, {"id": 2, "hours": 1}]),
    "parts of a subclass": run(sa.update(Repair).values(hours=1)),
    "delete parts": run(sa.delete(Work).where(Work.id < 4)),
    "delete parts, query": lambda s: s.query(Work).filter(Work.id < 4).delete(),
}
each_action_subclasses = pytest.mark.parametrize("action", ALL.values(), ids=ALL)


@each_action_subclasses
def test_each_lock_is_needed(session: LockingSession, action: SubclassesAction) -> None:
    for held, missing in ((1, 2), (2, 1)):
        kept = hold(session, Fault, held)
        with refused(session, Ticket, missing):
            action(session)
        session.rollback()
        assert kept


@each_action_subclasses
def test_with_both_it_goes_through(session: LockingSession, action: SubclassesAction) -> None:
    held = hold(session, Fault, 1, 2)
    with writes_sent(session) as sent:
        action(session)
    session.commit()
    assert sent
    assert held


NONE: dict[str, SubclassesAction] = {
    "update": run(sa.update(Ticket).where(Ticket.id == 3).values(total=1)),
    "by primary key": run(sa.update(Ticket), [{"id": 3, "total": 1}]),
    "parts": run(sa.update(Work).where(Work.id == 3).values(hours=1)),
    "insert": run(sa.insert(Ticket).values(id=9, kind="ticket")),
    "flush": lambda s: s.add_all([Ticket(id=9), Work(id=9)]),
}


@pytest.mark.parametrize("action", NONE.values(), ids=NONE)
def test_rows_of_no_document_need_no_lock(
    session: LockingSession, action: SubclassesAction
) -> None:
    action(session)
    session.commit()


EVERYTHING: dict[str, SubclassesAction] = {
    "class": run(sa.update(Work).values(hours=1)),
    "table": run(sa.update(WORKS).values(hours=1)),
    "by primary key": run(sa.update(Work), [{"id": ident, "hours": 1} for ident in (1, 2, 4)]),
    "delete": run(sa.delete(Work)),
}


@pytest.mark.parametrize("action", EVERYTHING.values(), ids=EVERYTHING)
def test_subclasses_that_are_parts_of_two_documents(
    session: LockingSession, action: SubclassesAction
) -> None:
    kept: list[Any] = [*hold(session, Fault, 1, 2)]
    with refused(session, Patient, 1):
        action(session)
    session.rollback()
    kept += hold(session, Patient, 1)
    with refused(session, Ticket, 1):
        action(session)
    session.rollback()
    kept += hold(session, Patient, 1) + hold(session, Fault, 1, 2)
    action(session)
    session.commit()
    assert kept


def test_a_flush_knows_which_row_is_of_a_document(session: LockingSession) -> None:
    fault, ticket = session.get_one(Ticket, 1), session.get_one(Ticket, 3)
    work, repair = session.get_one(Work, 3), session.get_one(Work, 1)
    ticket.total = work.hours = 1
    session.flush()
    fault.total = 1
    with refused(session, Ticket, 1, "Fault 1"):
        session.flush()
    session.rollback()
    repair.hours = 1
    with refused(session, Ticket, 1, "Repair 1"):
        session.flush()
