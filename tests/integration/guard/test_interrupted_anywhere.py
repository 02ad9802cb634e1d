"""Ctrl-C at each line of a transaction leaves the session in that transaction or in a new one.

The server holds every lock that the session lists.  The session writes nothing else.  After the
program ends the transaction, nothing of it remains, neither at the server nor in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool

from sa_doclock import (
    DocLockError,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    UnlockedWrite,
)
from tests.integration.guard.models import Order
from tests.integration.locking.steps import is_free
from tests.support.actors import PATIENCE
from tests.support.databases import PIPELINED, Database
from tests.support.tracing import UNFINISHED, CtrlC

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Call = Callable[[], object]
Step = Callable[[LockingSession, LockingSession], Call]
NUMBERS = {1, 2}
REFUSED = (*UNFINISHED, DocLockError)
#: The lines of a transaction, from its begin to its end.
OURS = (
    "sa_doclock.core.ledger",
    "sa_doclock.core.locking.acquire",
    "sa_doclock.core.session",
    "sa_doclock.core.transaction",
)
ANYWHERE = ("sqlalchemy.orm.session", "sa_doclock")

pytestmark = [
    pytest.mark.not_databases(PIPELINED),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def lock(session: LockingSession, number: int, lock: LockOptions = ForUpdate) -> Order:
    return session.get_one_entity(Order, number, lock)


def change(session: LockingSession, number: int) -> None:
    lock(session, number).total += 1


def both(session: LockingSession) -> sa.orm.SessionTransaction:
    """Lock order 1 in the transaction, and order 2 in a savepoint that is returned."""
    session.begin()
    lock(session, 1)
    savepoint = session.begin_nested()
    change(session, 2)
    return savepoint


# Each prepares a transaction, and returns the call to interrupt.


def begin(session: LockingSession, _: LockingSession) -> Call:
    return session.begin


def first_lock(session: LockingSession, _: LockingSession) -> Call:
    return lambda: lock(session, 1)


def second_lock(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    change(session, 1)
    return lambda: lock(session, 2)


def refused_lock(session: LockingSession, other: LockingSession) -> Call:
    session.begin()
    change(session, 1)
    lock(other, 2)

    def refused() -> None:
        with suppress(LockNotAvailable):
            lock(session, 2, ForUpdate | NoWait)

    return refused


def whole_document(session: LockingSession, _: LockingSession) -> Call:
    return lambda: session.get_document(Order, 1, ForUpdate)


def begin_savepoint(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    lock(session, 1)
    return session.begin_nested


def lock_in_savepoint(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    lock(session, 1)
    session.begin_nested()
    return lambda: lock(session, 2)


def roll_back_savepoint(session: LockingSession, _: LockingSession) -> Call:
    return both(session).rollback


def roll_back_two_savepoints(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    savepoint = session.begin_nested()
    lock(session, 1)
    session.begin_nested()
    lock(session, 2)
    return savepoint.rollback


def roll_back_savepoint_of_connection(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    lock(session, 1)
    savepoint = session.connection().begin_nested()
    lock(session, 2)
    return savepoint.rollback


def end_by_text(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    lock(session, 1)

    def end() -> None:
        session.execute(sa.text("COMMIT"))
        assert not session.held_locks

    return end


def end_by_driver(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    lock(session, 1)
    driver: Any = session.connection().connection.driver_connection
    driver.commit()
    return lambda: session.held_locks


def release_savepoint(session: LockingSession, _: LockingSession) -> Call:
    return both(session).commit


def flush(session: LockingSession, _: LockingSession) -> Call:
    session.begin()
    change(session, 1)
    return session.flush


def refused_flush(session: LockingSession, _: LockingSession) -> Call:
    lock(session, 1)
    session.get_one(Order, 2).total += 1

    def refused() -> None:
        with pytest.raises(UnlockedWrite):
            session.flush()

    return refused


def commit(session: LockingSession, _: LockingSession) -> Call:
    both(session).commit()
    return session.commit


def commit_of_a_block(session: LockingSession, _: LockingSession) -> Call:
    def in_block() -> None:
        with session.locked(Order, 1) as order:
            order.total += 1

    return in_block


def roll_back(session: LockingSession, _: LockingSession) -> Call:
    both(session)
    return session.rollback


def close(session: LockingSession, _: LockingSession) -> Call:
    both(session)
    return session.close


def roll_back_after_refused_lock(session: LockingSession, other: LockingSession) -> Call:
    refused_lock(session, other)()
    return session.rollback


#: SQLite locks the whole database; the holder of another order waits for it.
TWO_HOLDERS = (refused_lock, roll_back_after_refused_lock)
STEPS: tuple[Step, ...] = (
    begin,
    first_lock,
    second_lock,
    *TWO_HOLDERS,
    whole_document,
    begin_savepoint,
    lock_in_savepoint,
    roll_back_savepoint,
    roll_back_two_savepoints,
    roll_back_savepoint_of_connection,
    end_by_text,
    end_by_driver,
    release_savepoint,
    flush,
    refused_flush,
    commit,
    commit_of_a_block,
    roll_back,
    close,
)
each_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)


@each_step
@pytest.mark.databases("sqlite")
def test_at_each_line_of_a_transaction(documents: Database, step: Step) -> None:
    wrong = wrong_after_each_line(documents, step, OURS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "step", [first_lock, commit, roll_back_after_refused_lock], ids=lambda step: step.__name__
)
@pytest.mark.databases("postgresql")
def test_on_a_server(documents: Database, step: Step) -> None:
    """On a server all steps run with SQLAlchemy's lines too, which takes minutes."""
    wrong = wrong_after_each_line(documents, step, OURS)
    assert not wrong, "\n".join(wrong)


@each_step
@pytest.mark.slow
@pytest.mark.exhaustive
def test_at_each_line_of_sqlalchemy_too(documents: Database, step: Step) -> None:
    wrong = wrong_after_each_line(documents, step, ANYWHERE)
    assert not wrong, "\n".join(wrong)


def wrong_after_each_line(database: Database, step: Step, modules: tuple[str, ...]) -> list[str]:
    """Interrupt each line of these modules, and return its faults."""
    if database.name == "sqlite" and step in TWO_HOLDERS:
        pytest.skip("one holder at a time")
    own = {"isolation_level": "READ COMMITTED"} if database.name in ("mysql", "mariadb") else {}
    pool, other = Pool(database.engine(**own)), LockingSession(database.engine(**own))
    ctrl_c, wrong, interrupted = CtrlC(*modules), list[str](), True
    while interrupted:
        session = LockingSession(pool.engine)
        interrupted = ctrl_c.during(step(session, other))
        other.rollback()
        try:
            found = [*wrong_with(session, other), *wrong_after_end(session, other)]
        except Exception as error:  # noqa: BLE001  # an exception is a fault too
            found = [f"{type(error).__name__}: {error}"]
            other.rollback()
        wrong += [f"{ctrl_c.raised}: {one}" for one in found]
        pool.close_what_is_lost()
    other.close()
    return wrong


def wrong_with(session: LockingSession, other: LockingSession) -> Iterator[str]:
    """Yield the faults of the session's current transaction."""
    said = set[int]()
    with suppress(*REFUSED):
        said = {key for _, (key,) in session.held_locks}
    yield from (f"{number} is not held" for number in said if is_free(other, Order, number))
    for number in NUMBERS - said:
        with suppress(*REFUSED):
            session.get_one(Order, number).total += 1
            session.flush()
            yield f"{number} was written without its lock"
        session.expire_all()
        with suppress(*REFUSED):
            lock(session, number, ForUpdate | NoWait)
            if is_free(other, Order, number):
                yield f"{number} is not held, though its lock was granted"


def wrong_after_end(session: LockingSession, other: LockingSession) -> Iterator[str]:
    """Yield the remains after rollback(), and the faults of the next transaction."""
    try:
        session.rollback()
    except UNFINISHED:  # SQLAlchemy's own, of an interruption after COMMIT
        session.close()
    if session.held_locks:
        yield f"{session.held_locks} after rollback()"
    for number in NUMBERS:
        # No event tells when the server notices a closed connection.
        other.get_one_entity(Order, number, ForUpdate, lock_timeout=PATIENCE)
        other.rollback()
    if not session.autoflush:
        yield "autoflush is off"
    before = total(other)
    with suppress(UnlockedWrite):
        session.get_one(Order, 1).total += 1
        session.flush()
        yield "the next transaction writes without a lock"
    session.expire_all()
    change(session, 1)
    if session.held_locks != {(Order, (1,)): ForUpdate}:
        yield f"the next transaction holds {session.held_locks}"
    session.commit()
    if total(other) != before + 1:
        yield f"the next transaction has made {total(other)} of {before}"


def total(session: LockingSession) -> int:
    with session.begin():
        return session.scalars(sa.select(Order.total).where(Order.id == 1)).one()


class Pool:
    """The connections of the interrupted sessions."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._opened: list[Any] = []
        event.listen(engine, "connect", lambda driver, _record: self._opened.append(driver))

    def close_what_is_lost(self) -> None:
        """Close connections that SQLAlchemy itself lost, to release their locks."""
        assert isinstance(self.engine.pool, QueuePool)
        if self.engine.pool.checkedout():
            self.engine.dispose()
            while self._opened:
                with suppress(Exception):  # PyMySQL: already closed
                    self._opened.pop().close()
