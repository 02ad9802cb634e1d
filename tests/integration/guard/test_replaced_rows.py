"""A row that is deleted and inserted anew in one flush: SQLAlchemy sends one UPDATE for both."""

from __future__ import annotations

from typing import Any

import pytest

from sa_doclock import LockingSession
from tests.integration.guard.models import Box, Contract, Fault, Line, Order, Repair, Ticket
from tests.integration.guard.steps import hold, refused
from tests.support.rows import rows


def replace(session: LockingSession, old: Any, new: Any) -> None:
    with session.no_autoflush:
        session.delete(old)
        session.add(new)
    session.flush()


@rows(
    "header, part, values",
    [
        (Order, Line, {"order_id": 1, "value": 7}),
        (Fault, Repair, {"fault_id": 1, "hours": 7}),
        (Box, None, {"total": 7}),
        (Contract, None, {"total": 7, "terms_id": None}),
    ],
)
def test_of_a_held_document_it_is_written(
    session: LockingSession, header: Any, part: Any, values: dict[str, int]
) -> None:
    held = hold(session, header, 1)
    entity = part or header
    replace(session, session.get_one(entity, 1), entity(id=1, **values))
    session.expire_all()
    found = session.get_one(entity, 1)
    assert {name: getattr(found, name) for name in values} == values
    session.rollback()
    assert held


@rows(
    "header, part, values",
    [(Order, Line, {"order_id": 2}), (Ticket, Repair, {"fault_id": 2})],
)
def test_a_part_that_comes_to_another_document_is_refused(
    session: LockingSession, header: Any, part: Any, values: dict[str, int]
) -> None:
    held = hold(session, header, 1)
    with refused(session, header, 2):
        replace(session, session.get_one(part, 1), part(id=1, **values))
    session.rollback()
    assert held


@pytest.mark.parametrize("entity", [Box, Contract])
def test_a_header_is_refused_without_its_lock(session: LockingSession, entity: Any) -> None:
    with refused(session, entity, 2):
        replace(session, session.get_one(entity, 2), entity(id=2, total=7))


def test_a_held_header_does_not_take_the_key_of_another(session: LockingSession) -> None:
    held = hold(session, Box, 1)
    with refused(session, Box, 2), session.no_autoflush:
        session.get_one(Box, 2).id, held[0].id = 9, 2
        session.flush()
