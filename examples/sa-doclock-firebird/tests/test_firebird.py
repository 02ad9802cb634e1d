"""The Firebird behaviour that the strategy relies on, tested on the server."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from firebird.driver import Isolation, tpb
from sa_doclock_firebird import FirebirdLocks
from sa_doclock_firebird.locks import FOREVER

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
    lock_waits,
    with_lock,
)
from sa_doclock.testing.dialect_suite import (
    Actor,
    Line,
    Order,
    alice,
    bob,
    doclock_tables,
    lock_order,
    queued,
    strategy,
    total_of,
    tries,
)

__all__ = ["alice", "bob", "doclock_tables", "strategy"]  # fixtures
FOR_UPDATE, NO_WAIT = LockOptions.ForUpdate, LockOptions.NoWait


def limit_of(session: LockingSession) -> int:
    driver: Any = session.connection().connection.driver_connection
    return int(driver.main_transaction.info.lock_timeout)


def sql(engine: sa.Engine, lock: LockOptions) -> str:
    return str(with_lock(sa.select(Order), lock).compile(engine)).rpartition("\n")[2]


def test_the_strategy_is_found_by_its_entry_point(strategy: FirebirdLocks) -> None:
    assert type(strategy) is FirebirdLocks


def test_the_statement_says_with_lock_once(engine: sa.Engine) -> None:
    for lock in (FOR_UPDATE, FOR_UPDATE | NO_WAIT, FOR_UPDATE | LockOptions.NoKey):
        assert sql(engine, lock).strip().endswith("FOR UPDATE WITH LOCK")
        assert sql(engine, lock).count("WITH LOCK") == 1


def test_for_update_of_sqlalchemy_locks_nothing_here(doclock_tables: sa.Engine) -> None:
    statement = sa.select(Order).where(Order.id == 1).with_for_update()
    with doclock_tables.connect() as connection, LockingSession(doclock_tables) as other:
        connection.execute(statement)
        assert tries(other, FOR_UPDATE | NO_WAIT) is None


def test_for_update_of_sqlalchemy_is_a_lock_in_a_locking_session(alice: Actor, bob: Actor) -> None:
    def adopt(session: LockingSession) -> None:
        session.scalars(sa.select(Order).where(Order.id == 1).with_for_update()).one()

    alice.does(adopt)
    assert isinstance(bob.does(tries, FOR_UPDATE | NO_WAIT), LockNotAvailable)


def test_a_limit_is_one_of_the_transaction(alice: Actor) -> None:
    def lock_two(session: LockingSession, first: float | None, second: float | None) -> int:
        session.rollback()
        lock_order(session, FOR_UPDATE, 1, **({} if first is None else {"lock_timeout": first}))
        lock_order(session, FOR_UPDATE, 2, **({} if second is None else {"lock_timeout": second}))
        return limit_of(session)

    assert alice.does(lock_two, None, None) == FOREVER
    assert alice.does(lock_two, 1.2, None) == 2  # whole seconds, rounded up
    assert alice.does(lock_two, 5, 5) == 5
    assert alice.does(lock_two, 0, 0) == 0
    for first, second in ((None, 5), (5, 6), (5, 0), (None, 0)):
        with pytest.raises(LockNotSupported, match="limits the waits of a transaction"):
            alice.does(lock_two, first, second)


def test_the_limit_goes_with_its_transaction(alice: Actor) -> None:
    def twice(session: LockingSession) -> int:
        lock_order(session, FOR_UPDATE | NO_WAIT)
        session.commit()
        lock_order(session, FOR_UPDATE)
        return limit_of(session)

    assert alice.does(twice) == FOREVER


def test_a_transaction_in_snapshot_cannot_lock(
    firebird_url: str, doclock_tables: sa.Engine
) -> None:
    engine = sa.create_engine(firebird_url)  # the driver's default
    with LockingSession(engine) as session:
        assert total_of(session) == 3
        with pytest.raises(WrongIsolation, match="REPEATABLE READ"):
            lock_order(session, FOR_UPDATE)
    with LockingSession(engine) as session:
        assert lock_order(session, FOR_UPDATE) == 3  # the lock itself opens its transaction
    engine.dispose()


def test_shared_read_in_an_open_transaction_takes_the_lock(alice: Actor, bob: Actor) -> None:
    def read_and_lock(session: LockingSession) -> None:
        total_of(session, 2)
        lock_order(session, LockOptions.SharedRead)

    alice.does(read_and_lock)
    assert isinstance(bob.does(tries, FOR_UPDATE | NO_WAIT), LockNotAvailable)


def test_a_snapshot_read_is_read_only(alice: Actor) -> None:
    def write(session: LockingSession) -> None:
        lock_order(session, LockOptions.SnapshotRead)
        session.connection().execute(sa.update(Order).values(total=0))

    with pytest.raises((WrongIsolation, sa.exc.DBAPIError)):
        alice.does(write)


def test_a_row_that_is_replaced_during_the_wait_is_found(alice: Actor, bob: Actor) -> None:
    def replace(session: LockingSession) -> None:
        connection = session.connection()
        connection.execute(sa.delete(Line).where(Line.order_id == 1))
        connection.execute(sa.delete(Order).where(Order.id == 1))
        connection.execute(sa.insert(Order).values(id=1, total=50))

    alice.does(lock_order, FOR_UPDATE)
    step = queued(bob, alice, lock_order, FOR_UPDATE)
    alice.does(replace)
    alice.does(LockingSession.commit)
    assert step.result(30) == 50


def test_an_update_that_has_waited_is_a_conflict(
    doclock_tables: sa.Engine, alice: Actor, bob: Actor
) -> None:
    def update(session: LockingSession) -> None:
        session.connection().execute(sa.update(Order).where(Order.id == 1).values(total=7))

    def ready(session: LockingSession) -> None:
        session.connection()

    alice.does(lock_order, FOR_UPDATE)
    alice.does(update)
    bob.does(ready)
    step = queued(bob, alice, update)
    alice.does(LockingSession.commit)
    with pytest.raises(SnapshotConflict):
        step.result(30)


def test_a_join_locks_the_header_alone(alice: Actor, bob: Actor) -> None:
    def lock_join(session: LockingSession) -> list[int]:
        joined = with_lock(sa.select(Order).join(Line).where(Line.id == 10), FOR_UPDATE)
        return [order.id for order in session.scalars(joined)]

    assert alice.does(lock_join) == [1]
    assert isinstance(bob.does(tries, FOR_UPDATE | NO_WAIT), LockNotAvailable)


def test_many_keys_are_locked_in_chunks(doclock_tables: sa.Engine) -> None:
    with doclock_tables.begin() as connection:
        rows = [{"id": number, "total": 0} for number in range(100, 1700)]
        connection.execute(sa.insert(Order), rows)
    with LockingSession(doclock_tables) as session:
        assert len(session.get_entities(Order, range(100, 1700), FOR_UPDATE)) == 1600


def test_the_server_tells_who_waits_but_not_for_which_row(
    doclock_tables: sa.Engine, alice: Actor, bob: Actor
) -> None:
    alice.does(lock_order, FOR_UPDATE)
    step = queued(bob, alice, lock_order, FOR_UPDATE)
    (wait,) = lock_waits(doclock_tables)
    assert (wait.table, wait.key) == (Order.__tablename__, None)
    assert wait.blocker.state == "idle in transaction"
    assert wait.waiter.statement is not None
    assert "WITH LOCK" in wait.waiter.statement
    assert not wait.blocker.certain
    assert wait.seconds is not None
    alice.does(LockingSession.commit)
    step.result(30)


def test_a_write_that_refers_to_a_locked_row_waits(alice: Actor, bob: Actor) -> None:
    def insert(session: LockingSession) -> None:
        session.connection().execute(sa.insert(Line).values(id=99, order_id=1, amount=0))

    def ready(session: LockingSession) -> None:
        session.connection()

    alice.does(lock_order, FOR_UPDATE)
    bob.does(ready)
    step = queued(bob, alice, insert)
    alice.does(LockingSession.commit)
    step.result(30)


def test_the_level_of_the_driver_is_known(firebird_url: str) -> None:
    def default(driver: Any, _record: Any) -> None:
        driver.main_transaction.default_tpb = tpb(Isolation.SERIALIZABLE)

    engine = sa.create_engine(firebird_url)
    sa.event.listen(engine, "connect", default)
    with LockingSession(engine) as session:
        session.execute(sa.text("SELECT 1 FROM RDB$DATABASE"))
        with pytest.raises(WrongIsolation, match="SERIALIZABLE"):
            session.get_entity(Order, 1, FOR_UPDATE)
    engine.dispose()
