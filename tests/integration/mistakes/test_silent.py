"""Mistakes that go wrong without an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.integration.mistakes.models import Line, Order
from tests.support.databases import Database

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait


def test_autocommit(database: Database, session_factory: Callable[[], LockingSession]) -> None:
    autocommit = database.engine(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as plain, session_factory() as other:
        kept = plain.get_one(Order, 1, with_for_update=True)
        assert other.get_entity(Order, 1, ForUpdate | NoWait)  # nobody holds it
        assert kept
    with LockingSession(autocommit) as session, pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
        session.get_entity(Order, 1, ForUpdate)


def test_a_message_for_what_did_not_happen(
    plain: Session, locking: LockingSession, session_factory: Callable[[], LockingSession]
) -> None:
    sent: list[str] = []
    plain.add(Line(id=3, order_id=1, value=1))  # there is a line 3
    sent.append("mail")
    with pytest.raises(IntegrityError):
        plain.commit()
    assert sent == ["mail"]
    plain.rollback()

    sent.clear()
    order = locking.get_one_entity(Order, 1, ForUpdate)
    locking.add(Line(id=3, order=order, value=1))
    locking.on_commit(lambda: sent.append("mail"))
    with pytest.raises(IntegrityError):
        locking.save_changes()
    locking.rollback()
    assert sent == []

    def send() -> None:
        with session_factory() as other:  # the lock is gone
            assert other.get_entity(Order, 1, ForUpdate | NoWait)
        sent.append("mail")

    order = locking.get_one_entity(Order, 1, ForUpdate)
    locking.add(Line(id=9, order=order, value=1))
    locking.on_commit(send)
    locking.save_changes()
    assert sent == ["mail"]
