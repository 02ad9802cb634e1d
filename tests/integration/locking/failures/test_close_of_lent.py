"""An error in close() or reset() of a session that was lent a Connection, whose transaction stays."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.support.models import Order
from tests.support.rows import rows


class MistakeError(Exception):
    pass


# close() ends the transaction of a Connection that is lent with "control_fully", also without an error.
MODES = "conditional_savepoint", "rollback_only", "create_savepoint"


@pytest.mark.databases("sqlite", "postgresql")
@rows("mode", MODES)
@rows("name", ["close", "reset"])
@rows("error", [MistakeError, KeyboardInterrupt])
def test_what_the_lender_has_written_stays(
    engine: sa.Engine, mode: Any, name: str, error: type[BaseException]
) -> None:
    def mistake(_: Any, transaction: Any) -> None:
        if transaction.nested:
            raise error

    with engine.connect() as connection, connection.begin() as lent:
        connection.execute(sa.update(Order).where(Order.id == 2).values(total=4711))
        session = LockingSession(connection, join_transaction_mode=mode)
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        session.begin_nested()
        event.listen(session, "after_transaction_end", mistake)
        with pytest.raises(error):
            getattr(session, name)()
        assert not session.in_transaction()
        assert lent.is_active
        assert connection.scalar(sa.select(Order.total).where(Order.id == 2)) == 4711
        lent.rollback()
