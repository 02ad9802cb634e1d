"""A key that comes as text, as from a URL: the database takes "1" for 1, the session does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.support.models import Line, Order

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Ask = Callable[[Session], Any]

ASKED: dict[str, Ask] = {
    "get_one_entity": lambda session: session.get_one_entity(Order, "1", ForUpdate),
    "get_document": lambda session: session.get_document(Order, "1", ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, ["1"], ForUpdate)[0],
}

pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys()),
]


def test_what_was_read_before_is_fresh(
    session: Session, elsewhere: Callable[..., Any], ask: Ask
) -> None:
    order = session.get_one(Order, 1)
    line = order.lines[0]
    assert (order.total, line.value) == (30, 10)
    session.commit()
    assert (order.total, line.value) == (30, 10)
    session.rollback()
    kept = session.get_one(Order, 1), session.get_one(Line, 1).value
    session.commit()
    session.expire_all()
    assert (order.total, line.value) == (30, 10)
    elsewhere(sa.update(Order).values(total=99), sa.update(Line).values(value=77))
    assert ask(session) is order
    assert (order.total, line.value) == (99, 77)
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    assert kept


def test_pending_changes_are_refused(session: Session, ask: Ask) -> None:
    order = session.get_one(Order, 1)
    order.total = 31
    with pytest.raises(UnsavedChanges):
        ask(session)
    assert order.total == 31
    assert not session.held_locks
