"""A statement that is interrupted: its connection is given up, and so is the lock, at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.support.models import Line, Order

ForUpdate = LockOptions.ForUpdate


def test_the_lock_is_free_while_the_exception_is_looked_at(
    session: LockingSession, engine: sa.Engine, make_session: Callable[..., LockingSession]
) -> None:
    """Its traceback has the cursor, whose rows SQLite would go on reading in a transaction."""

    def press_ctrl_c(_: object, __: object, statement: str, *___: object) -> None:
        if "lk_line" in statement:
            raise KeyboardInterrupt

    event.listen(engine, "after_cursor_execute", press_ctrl_c)
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.scalars(sa.select(Line))
    session.close()
    other = make_session()
    assert other.get_one_entity(Order, 1, ForUpdate, lock_timeout=10).total == 30
    assert caught.tb is not None
