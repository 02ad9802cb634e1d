"""SQLite rolls a whole transaction back by itself, and no error number tells."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order

pytestmark = pytest.mark.databases("sqlite")

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Session = LockingSession
Run = Callable[..., list[Any]]
TOTALS = sa.select(Order.total).order_by(Order.id)

TRIGGER = """CREATE TRIGGER lk_refuse BEFORE UPDATE ON lk_customer WHEN NEW.name = 'refused'
    BEGIN SELECT RAISE(ROLLBACK, 'refused'); END"""


def conflicts(session: Session) -> None:
    """Insert a key that is there, with ON CONFLICT ROLLBACK."""
    session.execute(sa.text("INSERT OR ROLLBACK INTO lk_customer (id, name) VALUES (1, 'x')"))


def fires(session: Session) -> None:
    """Have a trigger refuse an update."""
    session.execute(sa.update(Customer).where(Customer.id == 1).values(name="refused"))


def fires_in_flush(session: Session) -> None:
    """Have it refuse a flush."""
    session.get_one(Customer, 1).name = "refused"
    session.flush()


def is_interrupted(session: Session) -> None:
    """Interrupt a statement that has begun to write."""
    driver: Any = session.connection().connection.driver_connection
    driver.create_function("lk_interrupt", 0, lambda: driver.interrupt() or 1)
    session.execute(
        sa.text(
            "INSERT INTO lk_customer (id, name) WITH RECURSIVE many(i) AS (SELECT 100 UNION ALL "
            "SELECT i + 1 FROM many WHERE i < 100000) SELECT i, lk_interrupt() FROM many"
        )
    )


def finds_disk_full(session: Session) -> None:
    """Write more pages than the file may have."""
    session.execute(sa.text("PRAGMA max_page_count = 1"))
    big = "INSERT INTO lk_customer (id, name) VALUES (100, hex(zeroblob(100000)))"
    session.execute(sa.text(big))


WAYS = [conflicts, fires, fires_in_flush, is_interrupted, finds_disk_full]


@pytest.fixture(autouse=True)
def trigger(elsewhere: Run) -> None:
    """Have a trigger on customers."""
    elsewhere(sa.text(TRIGGER))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_everything_is_refused_until_rollback(
    session: Session, elsewhere: Run, lock: LockOptions, way: Callable[[Session], None]
) -> None:
    order = session.get_one_entity(Order, 1, lock)
    if way is fires_in_flush and lock is SharedRead:
        pytest.skip("an update after a shared read is the same as fires()")
    with pytest.raises(DBAPIError):
        way(session)
    assert not session.held_locks
    order_id = sa.select(Order.id)
    with pytest.raises(PendingRollbackError):
        session.execute(order_id)
    with pytest.raises(PendingRollbackError):
        session.get_entity(Order, 2, ForUpdate)
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    elsewhere(sa.update(Order).where(Order.id == 1).values(total=50))
    with session.locked(Order, 1) as again:
        assert again is order
        again.total += 1
    assert elsewhere(TOTALS) == [(51,), (5,)]


@pytest.mark.parametrize("way", WAYS)
def test_in_a_savepoint(session: Session, elsewhere: Run, way: Callable[[Session], None]) -> None:
    def run() -> None:
        with session.begin():
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            session.flush()
            with pytest.raises(DBAPIError), session.begin_nested():
                way(session)
            assert not session.held_locks
            with pytest.raises(PendingRollbackError):
                session.get_entity(Order, 2, ForUpdate)

    with pytest.raises(PendingRollbackError):
        run()
    assert elsewhere(TOTALS) == [(30,), (5,)]
    with session.locked(Order, 1) as order:
        order.total = 32
    assert elsewhere(TOTALS) == [(32,), (5,)]


def test_a_savepoint_before_the_first_lock(session: Session, elsewhere: Run) -> None:
    def run() -> None:
        with session.begin():
            with session.begin_nested():
                session.execute(sa.update(Customer).values(name="half"))
            with pytest.raises(DBAPIError):
                conflicts(session)
            session.execute(sa.update(Order).where(Order.id == 2).values(total=6))

    with pytest.raises(PendingRollbackError):
        run()
    assert elsewhere(TOTALS) == [(30,), (5,)]


def test_nobody_else_waits(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(DBAPIError):
        conflicts(session)
    assert not finds_held()(other)


def test_an_error_that_undoes_its_statement_alone(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        with pytest.raises(sa.exc.IntegrityError):
            session.execute(sa.insert(Customer).values(id=1, name="twice"))
        assert list(session.held_locks) == [(Order, (1,))]
    assert elsewhere(TOTALS) == [(31,), (5,)]


def test_past_sqlalchemy(session: Session, elsewhere: Run) -> None:
    """The driver's connection is used, whose errors SQLAlchemy does not see."""

    def conflict(order: Order) -> None:
        driver: Any = session.connection().connection.driver_connection
        with pytest.raises(sqlite3.IntegrityError):
            driver.execute("INSERT OR ROLLBACK INTO lk_customer (id, name) VALUES (1, 'x')")
        elsewhere(sa.update(Order).where(Order.id == 1).values(total=50))
        order.total += 1

    with pytest.raises(sa.exc.OperationalError, match="Order 1: "), session.locked(Order, 1) as one:
        conflict(one)
    assert elsewhere(TOTALS) == [(50,), (5,)]
