"""A lock_timeout is one limit for all rows that a call requests, even in whole seconds."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, select

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, with_lock
from sa_doclock.core.locking import wait_limit as waiting
from sa_doclock.core.statements.key_selects import lock_by_key
from sa_doclock.dialects import strategy_for as strategy_for_memory
from sa_doclock.dialects.registry import strategy_for
from tests.integration.locking.connections import set_patience
from tests.integration.locking.steps import (
    add_ten,
    finds_held,
    locks,
    reads,
    recorded,
    save,
)
from tests.integration.timeouts.ways import WAYS, hold
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Lease, Order, Voucher
from tests.support.waits import wait_until, wait_until_blocked

ForUpdate = LockOptions.ForUpdate
WAITS_LONGER = {
    "mysql": "SELECT time > 0 FROM performance_schema.processlist WHERE id = :id",
    "mariadb": "SELECT time_ms > 100 FROM information_schema.processlist WHERE id = :id",
}
ENDED_BY_LIMIT = {"mysql": 3024, "mariadb": 1969}  # of the whole statement


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("seconds", [2, 2.5])
@pytest.mark.parametrize("way", [LockingSession.get_entities, LockingSession.get_documents])
def test_two_rows_have_one_limit(
    database: Database,
    alice: Actor[LockingSession],
    bob: Actor[LockingSession],
    carol: Actor[LockingSession],
    way: Any,
    seconds: float,
) -> None:
    """Carol waits for order 1, gets it, and then waits for order 2."""

    def lock_both(session: LockingSession) -> Any:
        return way(session, Order, [1, 2], ForUpdate, lock_timeout=seconds)

    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    step = carol.starts(lock_both)
    wait_until_blocked(waiter=carol, holder=alice, step=step)
    waits = sa.text(WAITS_LONGER[database.name]).bindparams(id=carol.server_pid())
    with database.observer().connect() as server:  # the statement's limit is 30 ms longer
        wait_until(lambda: server.execute(waits).scalar())
    alice.does(save)
    with pytest.raises(LockNotAvailable, match=f"not granted within {seconds:g} s") as caught:
        step.result(10)
    assert caught.value.orig is not None
    code = strategy_for(database.engine()).errors.native_code(caught.value.orig)
    assert code == ENDED_BY_LIMIT[database.name]
    bob.does(save)
    assert len(carol.does(lock_both)) == 2


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.databases("mariadb")
@pytest.mark.parametrize(("keys", "limited"), [(50, True), (51, False)])
def test_many_keys_are_not_limited_as_a_whole(
    session: LockingSession, engine: sa.Engine, keys: int, limited: bool
) -> None:
    """Reading many rows takes time without a wait."""
    with recorded(engine) as statements:
        session.get_entities(Order, range(1, keys + 1), ForUpdate, lock_timeout=30)
    (lock,) = [statement for statement in statements if "FOR UPDATE" in statement]
    assert lock.startswith("SET STATEMENT max_statement_time=30.030 FOR") is limited
    assert "WAIT 30" in lock


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.databases("mariadb")
def test_the_last_try_has_time_on_a_busy_server(
    session: LockingSession, other: LockingSession, engine: sa.Engine
) -> None:
    """It does not wait, so it may take longer than a limit of a tenth of a second."""
    other.get_one_entity(Order, 1, ForUpdate)
    with recorded(engine) as statements, pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.1)
    first, last = [statement for statement in statements if "FOR UPDATE" in statement]
    assert first.startswith("SET STATEMENT max_statement_time=0.100 FOR")
    assert last.startswith("SET STATEMENT max_statement_time=0.250 FOR")
    assert last.endswith("NOWAIT")


# --------------------------------------------------------------------------------------------------
# A lock_timeout longer than the server's own lock limit: the lock keeps waiting.

Session = LockingSession
Dave = Callable[..., Actor[Session]]


class Attempts:
    """Counts the locking statements of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self.statements: list[str] = []
        self.second = threading.Event()
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _: object, __: object, statement: str, *___: object) -> None:
        if "FOR UPDATE" in statement:
            self.statements.append(statement)
            if len(self.statements) > 1:
                self.second.set()


@pytest.fixture
def impatient(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> sa.Engine:
    """Make an engine whose server ends each wait for a lock after a second."""
    engine = make_engine(**read_committed)
    set_patience(engine, 1)
    return engine


@pytest.fixture
def attempts(impatient: sa.Engine) -> Attempts:
    return Attempts(impatient)


@pytest.fixture
def bert(impatient: sa.Engine, dave: Dave) -> Actor[Session]:
    """Add an actor who uses that engine."""
    return dave(lambda: LockingSession(impatient))


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.databases("mysql")
def test_a_wait_that_the_server_has_ended_goes_on(
    attempts: Attempts, alice: Actor[Session], bert: Actor[Session]
) -> None:
    alice.does(add_ten)
    queued = bert.starts(reads(lock_timeout=29.5))
    assert attempts.second.wait(PATIENCE)
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == (40, [20, 20])
    assert "MAX_EXECUTION_TIME(29500)" in attempts.statements[0]
    assert "MAX_EXECUTION_TIME(2" in attempts.statements[1]
    assert attempts.statements[1] != attempts.statements[0]  # the remaining time


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.databases("mysql")
def test_what_was_done_before_in_the_transaction_stays(
    attempts: Attempts,
    alice: Actor[Session],
    bert: Actor[Session],
    elsewhere: Callable[..., list[Any]],
) -> None:
    def work(session: Session) -> None:
        with session.begin():
            session.get_one_entity(Order, 2, ForUpdate).total = 6
            session.flush()
            session.get_one_entity(Order, 1, ForUpdate, lock_timeout=29).total = 31

    alice.does(locks(Order, 1))
    queued = bert.starts(work)
    assert attempts.second.wait(PATIENCE)
    assert alice.does(lambda session: session.held_locks) == {(Order, (1,)): ForUpdate}
    alice.does(lambda session: session.rollback())
    queued.result()
    totals = sa.select(Order.id, Order.total).order_by(Order.id)
    assert elsewhere(totals) == [(1, 31), (2, 6)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.slow
@pytest.mark.databases("mysql")
def test_the_limit_ends_the_second_wait_as_well(
    attempts: Attempts, bert: Actor[Session], other: Session
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    error = bert.starts(locks(Order, 1, lock_timeout=3.1)).exception()
    assert isinstance(error, LockNotAvailable)
    assert "not granted within 3.1 s" in str(error)
    assert error.waited >= 3.1
    assert len(attempts.statements) > 2
    assert not any(statement.endswith("NOWAIT") for statement in attempts.statements)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.databases("mysql")
def test_a_server_limit_that_ends_a_wait_which_is_over_is_reported_as_ours(
    impatient: sa.Engine, bert: Actor[Session], other: Session
) -> None:
    @event.listens_for(impatient, "before_cursor_execute", retval=True)
    def without_limit(_: object, __: object, statement: str, parameters: Any, *___: Any) -> Any:
        return re.sub(r"/\*\+.*?\*/", "", statement), parameters  # then the server ends it later

    other.get_one_entity(Order, 1, ForUpdate)
    error = bert.starts(locks(Order, 1, lock_timeout=0.5)).exception()
    assert isinstance(error, LockNotAvailable)
    assert "not granted within 0.5 s" in str(error)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.databases("mysql")
def test_without_a_limit_of_ours_the_servers_ends_it(
    attempts: Attempts, bert: Actor[Session], other: Session
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match="within the server's own limit"):
        bert.does(locks(Order, 1))
    assert len(attempts.statements) == 1


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.slow
@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("seconds", [29, 28.5])
def test_the_limit_of_the_statement_takes_the_place_of_the_servers(
    impatient: sa.Engine,
    alice: Actor[Session],
    bert: Actor[Session],
    bob: Actor[Session],
    seconds: float,
) -> None:
    """A session that came after bert, with the server's limit, has given up before."""
    alice.does(hold)
    queued = bert.starts(lambda session: WAYS["entity_set"](session, lock_timeout=seconds))
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    with pytest.raises(LockNotAvailable), LockingSession(impatient) as session:
        session.get_entity(Order, 1, ForUpdate)
    wait_until_blocked(waiter=bert, holder=alice, step=queued)
    alice.does(lambda session: session.rollback())
    assert len(queued.result()) == 2
    assert bob.does(finds_held())


# --------------------------------------------------------------------------------------------------
# The program's optimizer hint on MySQL leaves the lock timeout in force.

# ER_QUERY_TIMEOUT, or ER_LOCK_NOWAIT of the try after it; innodb_lock_wait_timeout gives 1205.
_BY_OUR_LIMIT = {3024, 3572}


@pytest.mark.databases("mysql")
@pytest.mark.parametrize(
    "prefix", ["/*+ NO_ICP(lk_order) */", "SQL_NO_CACHE", "/*+ MAX_EXECUTION_TIME(60000) */"]
)
def test_a_set_with_hints_waits_no_longer(
    session: LockingSession, other: LockingSession, prefix: str
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.connection().exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 8")
    session.rollback()
    statement = session.entity_set(Order, ForUpdate, lock_timeout=0.3).prefix_with(prefix)
    with pytest.raises(LockNotAvailable) as caught:
        session.scalars(statement)
    assert caught.value.orig is not None
    assert caught.value.orig.args[0] in _BY_OUR_LIMIT
    plain = with_lock(select(Order).prefix_with(prefix), ForUpdate)
    other.rollback()
    assert len(session.scalars(plain).all()) == 2


# --------------------------------------------------------------------------------------------------
# A limit does not keep the caller's statement alive, and does not rebuild an existing one.


def lock_by_set(session: Session, number: int) -> weakref.ref[Any]:
    statement = session.entity_set(Order, ForUpdate, lock_timeout=5.5).where(Order.id == number)
    session.scalars(statement).all()
    session.rollback()
    return weakref.ref(statement)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_set_is_forgotten(session: Session) -> None:
    lock_by_set(session, 1)
    kept = len(waiting._last)
    references = [lock_by_set(session, number) for number in (1, 2, 3)]
    session.get_entities(Voucher, [(2024, 1), (2024, 2)], ForUpdate, lock_timeout=5.5)
    session.rollback()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert len(waiting._last) <= kept  # less, if mappers were made meanwhile


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_one_by_key_is_made_once_for_each_limit(session: Session) -> None:
    statement = lock_by_key(Lease.__mapper__, ForUpdate)
    strategy = strategy_for_memory(session.get_bind())

    def timed(seconds: float) -> Any:
        return waiting.WaitLimit(strategy, ForUpdate, seconds).timed(statement)

    first = timed(5.5)
    assert timed(5.5) is first
    assert str(timed(6.5)) == str(strategy.waits.timed(statement, ForUpdate, 6.5))
    assert str(timed(5.5)) == str(first)
