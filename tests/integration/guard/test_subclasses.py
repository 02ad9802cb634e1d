"""Statements on a class that is not declared, but some of whose rows belong to documents."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.guard.models import Fault, Patient, Repair, Ticket, Work
from tests.integration.guard.steps import Action, hold, refused, writes_sent

pytestmark = pytest.mark.quick

TICKETS: Any = Ticket.__table__
WORKS: Any = Work.__table__


def run(statement: Any, parameters: Any = None) -> Action:
    return lambda session: session.execute(statement, parameters)


ALL: dict[str, Action] = {
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
each_action = pytest.mark.parametrize("action", ALL.values(), ids=ALL)


@each_action
def test_each_lock_is_needed(session: LockingSession, action: Action) -> None:
    for held, missing in ((1, 2), (2, 1)):
        kept = hold(session, Fault, held)
        with refused(session, Ticket, missing):
            action(session)
        session.rollback()
        assert kept


@each_action
def test_with_both_it_goes_through(session: LockingSession, action: Action) -> None:
    held = hold(session, Fault, 1, 2)
    with writes_sent(session) as sent:
        action(session)
    session.commit()
    assert sent
    assert held


NONE: dict[str, Action] = {
    "update": run(sa.update(Ticket).where(Ticket.id == 3).values(total=1)),
    "by primary key": run(sa.update(Ticket), [{"id": 3, "total": 1}]),
    "parts": run(sa.update(Work).where(Work.id == 3).values(hours=1)),
    "insert": run(sa.insert(Ticket).values(id=9, kind="ticket")),
    "flush": lambda s: s.add_all([Ticket(id=9), Work(id=9)]),
}


@pytest.mark.parametrize("action", NONE.values(), ids=NONE)
def test_rows_of_no_document_need_no_lock(session: LockingSession, action: Action) -> None:
    action(session)
    session.commit()


EVERYTHING: dict[str, Action] = {
    "class": run(sa.update(Work).values(hours=1)),
    "table": run(sa.update(WORKS).values(hours=1)),
    "by primary key": run(sa.update(Work), [{"id": ident, "hours": 1} for ident in (1, 2, 4)]),
    "delete": run(sa.delete(Work)),
}


@pytest.mark.parametrize("action", EVERYTHING.values(), ids=EVERYTHING)
def test_subclasses_that_are_parts_of_two_documents(
    session: LockingSession, action: Action
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
