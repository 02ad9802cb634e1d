"""A lock that fails in a listener of the last flush: the commit is refused, and nothing stays open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.databases("postgresql", "mysql", "mariadb"), pytest.mark.read_committed]

Session = LockingSession


@pytest.mark.parametrize("ends", [Session.close, Session.rollback], ids=["close", "rollback"])
def test_the_connection_goes_back_without_its_transaction(
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, str],
    other: Session,
    elsewhere: Callable[..., list[tuple[str]]],
    ends: Callable[[Session], None],
) -> None:
    other.get_one_entity(Order, 2, LockOptions.ForUpdate)
    engine = make_engine(pool_size=1, max_overflow=0, **read_committed)
    session = Session(engine)

    @event.listens_for(session, "after_flush")
    def lock(session: Session, _: object) -> None:
        with suppress(LockNotAvailable):
            session.get_entity(Order, 2, LockOptions.ForUpdate | LockOptions.NoWait)

    session.get_one(Customer, 1).name = "never"
    with pytest.raises(PendingRollbackError):
        session.commit()
    ends(session)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
        connection.commit()
    ((name,),) = elsewhere(sa.select(Customer.name).where(Customer.id == 1))
    assert name != "never"
    session.close()
