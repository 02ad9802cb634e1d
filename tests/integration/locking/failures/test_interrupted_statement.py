"""A statement that is interrupted: its connection is given up, and so is the lock, at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from sa_doclock.sqlalchemy_internals import execute_listeners
from tests.support.ctrl_c import CtrlC
from tests.support.models import Line, Order
from tests.support.rows import rows

pytestmark = pytest.mark.quick

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


def press_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


@rows(
    "module, name, value",
    [
        ("core.locking.acquire", "_end_granted", press_ctrl_c),
        ("core.ledger", "time", SimpleNamespace(monotonic=press_ctrl_c)),
    ],
)
def test_the_session_can_be_used_after_an_interruption_behind_the_grant(
    session: LockingSession, monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: object
) -> None:
    session.begin()
    savepoint = session.begin_nested()
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[f"sa_doclock.{module}"], name, value)
        with pytest.raises(KeyboardInterrupt):
            session.get_entity(Order, 1, ForUpdate)
    savepoint.rollback()
    assert not session.held_locks
    assert session.get_one_entity(Order, 1, ForUpdate).total == 30
    session.rollback()


def test_the_listener_of_a_lock_does_nothing_after_an_interruption(
    make_session: Callable[..., LockingSession],
) -> None:
    ctrl_c = CtrlC(
        "sa_doclock.core.locking.execute_listeners",
        "sa_doclock.sqlalchemy_internals",
        "contextlib",
        "sqlalchemy.event.api",
    )
    session = make_session()
    event.listen(session, "do_orm_execute", lambda _: None)
    while ctrl_c.during(lambda: session.get_entity(Order, 1, ForUpdate)):
        session.rollback()
        for left in [*execute_listeners(session)][1:]:
            left(None)  # it does not look at the statement
