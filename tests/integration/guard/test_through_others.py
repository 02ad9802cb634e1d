"""Documents that are written through objects which are not declared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.guard.models import Archive, Box, Customer, Line, Order, Plan, Project, Step
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
    with refused(session, Order, 1, "Order 1", "changed", "Customer 2.orders"):
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
        with refused(session, Order, missing, "Customer 1.orders"):
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
    if session.get_bind().dialect.name != "sqlite":  # which enforces no foreign keys
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
