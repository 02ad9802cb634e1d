"""A flush that fails has rolled back: nothing is held any more, and nothing says otherwise."""

from __future__ import annotations

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, PendingRollbackError

from sa_doclock import LockingSession, LockOptions, ReleasedLock
from tests.support.models import Line, Order

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


def fail_to_flush(session: Session) -> None:
    session.add(Line(id=1, order_id=1, name="there is one", value=1))
    with pytest.raises(IntegrityError):
        session.flush()


def test_what_was_held_is_held_no_more(session: Session, other: Session) -> None:
    kept = session.get_one_entity(Order, 1, ForUpdate)
    fail_to_flush(session)
    assert kept in session
    assert not session.held_locks
    assert other.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)


def test_it_cannot_be_had_again_before_the_rollback(session: Session) -> None:
    kept = session.get_one_entity(Order, 1, ForUpdate)
    fail_to_flush(session)
    with pytest.raises(PendingRollbackError):
        session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(PendingRollbackError):
        session.get_entities(Order, [1, 2], ForUpdate)
    session.rollback()
    assert session.get_entity(Order, 1, ForUpdate) is kept
    assert session.held_locks == {(Order, (1,)): ForUpdate}


def test_the_release_is_reported_once(session: Session) -> None:
    reported: list[tuple[list[ReleasedLock], str]] = []
    event.listen(
        session, "locks_released", lambda _, released, outcome: reported.append((released, outcome))
    )
    session.get_one_entity(Order, 1, ForUpdate)
    fail_to_flush(session)
    session.rollback()
    ((released, outcome),) = reported
    assert [one.document for one in released] == [(Order, (1,))]
    assert outcome in {"rolled back", "lost"}  # PostgreSQL has done so before SQLAlchemy did


def test_in_a_savepoint_what_was_locked_before_it_is_still_held(session: Session) -> None:
    kept = [session.get_one_entity(Order, 1, ForUpdate)]
    savepoint = session.begin_nested()
    kept.append(session.get_one_entity(Order, 2, ForUpdate))
    fail_to_flush(session)
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    with pytest.raises(PendingRollbackError):
        session.get_entity(Order, 2, ForUpdate)
    savepoint.rollback()
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    kept[0].total = 31
    session.save_changes()
