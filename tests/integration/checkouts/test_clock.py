"""The clock: the database's, at the time of the question, and not at the begin of the transaction."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession
from tests.integration.checkouts.models import CHECKOUTS, Memo, Order

pytestmark = pytest.mark.quick


def test_a_check_out_late_in_a_transaction_begins_then(
    factory: sessionmaker[LockingSession], engine: sa.Engine
) -> None:
    with factory() as session, factory() as other:
        session.get_one(Memo, 1)  # begins the transaction
        if engine.dialect.name != "sqlite":
            earlier = other.check_out(Order, 2, "bob")
            other.commit()
            assert session.check_out(Order, 1, "ann").since > earlier.since
        mine = session.check_out(Order, 1, "ann")
        again = session.renew(mine)
        assert again.until > mine.until - timedelta(milliseconds=1)
        session.commit()


def test_times_are_in_utc_and_have_microseconds(
    factory: sessionmaker[LockingSession], engine: sa.Engine
) -> None:
    with factory() as session:
        mine = session.check_out(Order, 1, "ann", lease=timedelta(microseconds=1500))
        session.commit()
        assert mine.since.utcoffset() == timedelta(0)
        assert mine.lease == timedelta(milliseconds=2)  # rounded up
        assert mine.until - mine.since == mine.lease
        stored = session.execute(sa.select(CHECKOUTS.c.since, CHECKOUTS.c.until)).one()
        assert (stored.since, stored.until) == (mine.since, mine.until)
        session.rollback()
        if engine.dialect.name != "sqlite":  # whose clock has milliseconds
            sinces = set()
            for number in range(5):
                sinces.add(session.take_over(Order, 1, f"{number}").since.microsecond % 1000)
                session.commit()
            assert sinces != {0}
