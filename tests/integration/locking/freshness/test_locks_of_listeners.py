"""A do_orm_execute listener of the program takes a lock, before a statement that takes none is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockMisuse, LockOptions, WrongIsolation, with_lock
from tests.integration.locking.steps import add_ten, save, seen
from tests.support.models import Line, Order, Ticket
from tests.support.rows import rows

ForUpdate = LockOptions.ForUpdate
Act = Callable[[LockingSession], Any]
FIRST_ORDER = sa.select(Order).where(Order.id == 1)

TAKES: dict[str, Act] = {
    "get_entity": lambda session: session.get_one_entity(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1], ForUpdate)[0],
    "with_lock": lambda session: session.scalars(with_lock(FIRST_ORDER, ForUpdate)).one(),
    "with_for_update": lambda session: session.scalars(FIRST_ORDER.with_for_update()).one(),
}
STATEMENTS: dict[str, Act] = {
    "select": lambda session: session.scalars(sa.select(Ticket)).all(),
    "columns": lambda session: session.execute(sa.select(Line.value)).all(),
    "past us": lambda session: Session.execute(session, sa.select(Ticket)).all(),
    "get": lambda session: session.get(Ticket, 1),
    "get_entities": lambda session: session.get_entities(Ticket, [1], LockOptions.None_),
    "text": lambda session: session.execute(sa.text("SELECT 1")).all(),
    "an expired object": lambda session: session.info["order"].total,
    "a collection": lambda session: session.info["order"].lines,
    "the same rows": lambda session: session.scalars(sa.select(Order)).all(),
    "with_for_update": lambda session: session.scalars(FIRST_ORDER.with_for_update()).all(),
    "update": lambda session: session.execute(
        sa.update(Order).where(Order.id == 1).values(total=Order.total)
    ),
}


class Listener:
    """Takes a lock before the first statement that it is called for."""

    def __init__(self, take: Act) -> None:
        self._take: Act | None = take
        self.taken: Any = None

    def __call__(self, state: Any) -> None:
        take, self._take = self._take, None  # its own statements come here too
        if take is not None:
            self.taken = take(state.session)


@rows(
    "take, statement",
    [
        *[(TAKES["get_entity"], statement) for statement in STATEMENTS.values()],
        *[(take, STATEMENTS["select"]) for take in TAKES.values()],
        *[(take, STATEMENTS["past us"]) for take in TAKES.values()],
    ],
    ids=[*STATEMENTS, *TAKES, *(f"past us, {take}" for take in TAKES)],
)
def test_it_is_held_and_fresh(
    session_factory: Callable[[], LockingSession], take: Act, statement: Act
) -> None:
    with session_factory() as session, session_factory() as other:
        order = session.info["order"] = session.get_one(Order, 1)
        before = seen(order)
        session.rollback()
        add_ten(other)
        save(other)
        listener, called = Listener(take), list[Any]()
        event.listen(session, "do_orm_execute", listener)
        event.listen(session, "do_orm_execute", called.append)
        statement(session)
        assert called  # the listeners behind it
        assert listener.taken is order
        assert (Order, (1,)) in session.held_locks
        after = before[0] + 10, [before[1][0] + 10, *before[1][1:]]
        assert seen(order) == after
        order.lines[0].value -= 10  # as it was, for the next row
        order.total -= 10
        session.commit()
        assert session.scalars(sa.select(Line.value).where(Line.id == 1)).one() == before[1][0]


def test_it_is_refused_within_a_lock_before_anything_is_sent(session: LockingSession) -> None:
    event.listen(session, "do_orm_execute", Listener(TAKES["get_entity"]))
    with pytest.raises(LockMisuse, match="take it after that call returns"):
        session.get_entity(Ticket, 1, ForUpdate)
    assert not session.in_transaction()


def test_nothing_is_written_in_the_snapshot_of_a_listener(session: LockingSession) -> None:
    write = sa.update(Ticket).values(total=7)
    listener = Listener(lambda session: session.get_entity(Order, 1, LockOptions.SnapshotRead))
    event.listen(session, "do_orm_execute", listener)
    with pytest.raises(WrongIsolation):
        session.execute(write)
    session.rollback()
    session.get_entity(Order, 1, LockOptions.SnapshotRead)
    event.listen(session, "do_orm_execute", lambda state: setattr(state, "statement", write))
    with pytest.raises(WrongIsolation):
        session.execute(sa.select(Ticket))
