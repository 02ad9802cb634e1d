"""An interruption that the driver turns into an error of its own: the connection is given up."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.support.models import Order

STATEMENT = sa.select(sa.literal(1).label("interrupted"))


def interrupt_the_driver(engine: sa.Engine) -> None:
    """Do what psycopg does where a task is cancelled as it enters its pipeline."""

    def execute(_: Any, statement: str, *__: object) -> None:
        if "interrupted" in statement:
            try:
                raise KeyboardInterrupt
            finally:
                raise AssertionError

    event.listen(engine, "do_execute", execute)


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def fail_in_the_driver(engine: sa.Engine) -> None:
    def execute(_: Any, statement: str, *__: object) -> None:
        if "interrupted" in statement:
            raise ZeroDivisionError

    event.listen(engine, "do_execute", execute)


def test_the_interruption_comes_out_and_the_connection_is_not_used_again(
    session: LockingSession, engine: sa.Engine
) -> None:
    interrupt_the_driver(engine)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    connection = session.connection()
    with pytest.raises(KeyboardInterrupt):
        session.execute(STATEMENT)
    assert connection.invalidated
    assert not session.held_locks
    session.rollback()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).total == 30


def test_an_error_while_the_caller_handles_one_stays_an_error(
    session: LockingSession, engine: sa.Engine
) -> None:
    fail_in_the_driver(engine)
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    try:
        press_ctrl_c()
    except KeyboardInterrupt:
        with pytest.raises(ZeroDivisionError):
            session.execute(STATEMENT)
    assert not session.connection().invalidated
    assert session.held_locks
