"""Parts that come from another session, and that another has moved since they were read."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, update

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Order
from tests.integration.guard.steps import hold, refused
from tests.support.rows import rows


@rows("number, change", [(1, LockingSession.add), (2, LockingSession.delete)])
def test_a_move_leaves_the_document_that_the_row_is_in_now(
    session: LockingSession,
    engine: Engine,
    number: int,
    change: Callable[[LockingSession, Line], None],
) -> None:
    with LockingSession(engine) as before:
        line = before.get_one(Line, number)
        before.expunge_all()
    with engine.begin() as connection:
        connection.execute(update(Line).where(Line.id == number).values(order_id=2))
    line.order_id = 9
    held = hold(session, Order, 1)
    session.add(Order(id=9))
    session.flush()
    with refused(session, Order, 2):
        change(session, line)
        session.flush()
    session.close()
    assert held
