"""The privileges that an account needs to see who waits, and that no more are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotSupported, lock_waits
from tests.integration.locking.steps import locks, roll_back
from tests.integration.monitoring.steps import among, blockers, ids, up_to_date
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order
from tests.support.waits import wait_until_blocked

Session = Actor[LockingSession]
NEEDED = {"mysql": "SELECT ON performance_schema.*", "mariadb": "PROCESS ON *.*"}


@contextmanager
def engine_of(url: sa.URL) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.mark.databases("mysql", "mariadb")
def test_who_may_not_know_learns_what_to_grant_and_that_is_enough(
    database: Database, alice: Session, bob: Session, poor: sa.URL
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    with engine_of(poor) as engine:
        with pytest.raises(LockNotSupported) as caught:
            lock_waits(engine)
        needed = NEEDED[database.name]
        text = f"lock_waits() on {database.name}: the account needs GRANT {needed}"
        assert caught.value.args == (text,)
        with database.observer().connect() as connection:
            connection.exec_driver_sql(f"GRANT {needed} TO {poor.username}")
        engine.dispose()  # MariaDB has noted what the connection may do
        (wait,) = up_to_date(database, lambda: among(lock_waits(engine), bob), lambda found: found)
        with LockingSession(engine, diagnose=True) as session:
            found = up_to_date(
                database,
                lambda: blockers(session, Order, 1),
                lambda found: set(found) == ids(alice),
            )
    assert set(found) == {wait.blocker.connection_id} == ids(alice)
    assert wait.waiter.state == "active"
    assert "FOR UPDATE" in str(wait.waiter.statement)
    assert wait.blocker.transaction_seconds is not None
    alice.does(roll_back)
    queued.result()


@pytest.mark.databases("postgresql")
def test_on_postgresql_every_account_sees_who_waits(
    alice: Session, bob: Session, poor: sa.URL
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    with engine_of(poor) as engine:
        (wait,) = among(lock_waits(engine), bob)
    assert {wait.blocker.connection_id} == ids(alice)
    assert (wait.waiter.state, wait.waiter.statement) == (None, None)
    assert (wait.table, wait.key) == ("lk_order", "1")
    alice.does(roll_back)
    queued.result()
