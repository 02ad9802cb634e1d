"""An interruption between two lines of the ledger: a place that is noted, and nothing is held there."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockLost, LockOptions
from sa_doclock.core.session.hooks import context_of
from tests.support.models import Order


@pytest.mark.databases("postgresql")
def test_a_lock_that_is_lost_is_not_held_by_its_place(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        state = context_of(session)
        places = dict(state.ledger.places)
        state.transaction.note_ended(session.connection(), "lost")
        state.ledger.places.update(places)  # clear() was interrupted
        with pytest.raises(LockLost):
            state.transaction.refuse_write()
        session.rollback()


@pytest.mark.databases("postgresql")
def test_a_lost_connection_with_a_place_alone(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        driver: Any = session.connection().connection.driver_connection
        context_of(session).ledger.places[Order, (1,)] = 1.0  # record() was interrupted
        driver.close()
        with pytest.raises(sa.exc.OperationalError):
            session.scalar(sa.text("SELECT 1"))
        session.rollback()
