"""Ctrl-C at each line of SQLAlchemy's session and of ours, while a transaction or a savepoint ends.

What the session says that it holds afterwards, the server holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import is_free
from tests.support.ctrl_c import UNFINISHED, CtrlC
from tests.support.databases import PIPELINED
from tests.support.models import Order
from tests.support.rows import rows

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
MODULES = "sqlalchemy.orm.session", "sa_doclock.core.session", "sa_doclock.core.transaction"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.databases("postgresql"),
    pytest.mark.not_databases(PIPELINED),
]


def begin(session: LockingSession) -> sa.orm.SessionTransaction:
    """Lock order 1 in the transaction, and order 2 in a savepoint that is returned."""
    session.begin()
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint = session.begin_nested()
    session.get_one_entity(Order, 2, ForUpdate).total += 1
    return savepoint


def roll_back_two(session: LockingSession) -> Callable[[], object]:
    session.begin()
    savepoint = session.begin_nested()
    session.get_one_entity(Order, 1, ForUpdate)
    session.begin_nested()
    session.get_one_entity(Order, 2, ForUpdate)
    return savepoint.rollback


def release_savepoint(session: LockingSession) -> Callable[[], object]:
    return begin(session).commit


def roll_back(session: LockingSession) -> Callable[[], object]:
    begin(session)
    return session.rollback


def commit(session: LockingSession) -> Callable[[], object]:
    begin(session).commit()
    return session.commit


def close(session: LockingSession) -> Callable[[], object]:
    begin(session)
    return session.close


def roll_back_of_connection(session: LockingSession) -> Callable[[], object]:
    session.begin()
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint = session.connection().begin_nested()
    session.get_one_entity(Order, 2, ForUpdate)
    return savepoint.rollback


def begin_savepoint(session: LockingSession) -> Callable[[], object]:
    session.begin()
    session.get_one_entity(Order, 1, ForUpdate)
    return session.begin_nested


STEPS = [
    roll_back_two,
    release_savepoint,
    roll_back,
    commit,
    close,
    roll_back_of_connection,
    begin_savepoint,
]


@rows("step", STEPS, ids=lambda step: step.__name__)
def test_what_is_said_to_be_held_is_held(make_engine: Callable[..., sa.Engine], step: Any) -> None:
    engine, other = make_engine(poolclass=sa.NullPool), LockingSession(make_engine())
    ctrl_c, wrong, interrupted = CtrlC(*MODULES), list[object](), True
    while interrupted:
        with disposable(engine):
            session = LockingSession(engine)
            interrupted = ctrl_c.during(step(session))
            said = held_by(session)
            if free := [number for number in said if is_free(other, Order, number)]:
                wrong.append((ctrl_c.raised, free))
            with suppress(*UNFINISHED):
                session.rollback()  # no other error, of ours
    other.close()
    assert not wrong, "\n".join(map(str, wrong))


def held_by(session: LockingSession) -> set[int]:
    """Return the orders that the session says it holds, in held_locks or by a call that returns."""
    said = set[int]()
    with suppress(*UNFINISHED):
        said.update(ident[0] for _, ident in session.held_locks)
    for number in (1, 2):
        with suppress(*UNFINISHED):
            session.get_entity(Order, number, ForUpdate | NoWait)
            said.add(number)
    return said


@contextmanager
def disposable(engine: sa.Engine) -> Iterator[None]:
    """Close the connections behind the back of a session that may have lost them."""
    opened: list[Any] = []

    def note(driver: Any, _record: object) -> None:
        opened.append(driver)

    event.listen(engine, "connect", note)
    try:
        yield
    finally:
        event.remove(engine, "connect", note)
        for driver in opened:
            driver.close()
