"""A refusal that ends the whole transaction at the server: MariaDB with innodb_rollback_on_timeout, for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.core.transaction import error_translation
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
pytestmark = [
    pytest.mark.read_committed,
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
]


@pytest.fixture
def ended_by_refusal(
    make_session: Callable[..., LockingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have order 2 held, and its first refusal end the transaction; then it is free."""
    holder = make_session()
    holder.get_one_entity(Order, 2, ForUpdate)

    def has_ended(_states: object, met: error_translation.DriverError) -> bool:
        held = holder.in_transaction()
        if held:
            met.connection.connection.rollback()
            holder.rollback()
        return held

    monkeypatch.setattr(error_translation, "_has_ended", has_ended)


@pytest.mark.usefixtures("ended_by_refusal")
def test_what_was_done_before_is_gone_and_nothing_is_tried_again(
    engine: sa.Engine,
) -> None:
    with LockingSession(engine, priority="batch") as batch:
        batch.get_one_entity(Order, 1, ForUpdate).total += 1
        batch.flush()
        with pytest.raises(LockNotAvailable):
            batch.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(PendingRollbackError, match="at the server"):
            batch.commit()
        batch.rollback()
        assert batch.get_one_entity(Order, 1, ForUpdate).total == 30


@pytest.mark.usefixtures("ended_by_refusal")
def test_a_call_that_has_opened_the_transaction_goes_on_in_a_new_one(
    engine: sa.Engine,
) -> None:
    with LockingSession(engine, priority="batch") as batch:
        order = batch.get_one_entity(Order, 2, ForUpdate)
        order.total += 1
        batch.save_changes()
        assert not batch.held_locks
