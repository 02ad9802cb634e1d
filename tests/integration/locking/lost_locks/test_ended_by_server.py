"""SQLite rolls back by itself, and MySQL and MariaDB commit by themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from sa_doclock import LockingSession, LockLost, LockOptions, WrongIsolation
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order

SharedRead = LockOptions.SharedRead


# --------------------------------------------------------------------------------------------------
# SQLite rolls back a whole transaction by itself, and no error number reports it.

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Run = Callable[..., list[Any]]
TOTALS = sa.select(Order.total).order_by(Order.id)

TRIGGER = """CREATE TRIGGER lk_refuse BEFORE UPDATE ON lk_customer WHEN NEW.name = 'refused'
    BEGIN SELECT RAISE(ROLLBACK, 'refused'); END"""


def conflicts(session: Session) -> None:
    """Insert an existing key, with ON CONFLICT ROLLBACK."""
    session.execute(sa.text("INSERT OR ROLLBACK INTO lk_customer (id, name) VALUES (1, 'x')"))


def fires(session: Session) -> None:
    """Let a trigger refuse an update."""
    session.execute(sa.update(Customer).where(Customer.id == 1).values(name="refused"))


def fires_in_flush(session: Session) -> None:
    """Let the trigger refuse a flush."""
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


@pytest.fixture
def trigger(elsewhere: Run) -> None:
    """Create a trigger on customers."""
    elsewhere(sa.text(TRIGGER))


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("trigger")
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


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("trigger")
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


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("trigger")
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


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("trigger")
def test_nobody_else_waits(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(DBAPIError):
        conflicts(session)
    assert not finds_held()(other)


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("trigger")
def test_an_error_that_undoes_its_statement_alone(session: Session, elsewhere: Run) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        with pytest.raises(sa.exc.IntegrityError):
            session.execute(sa.insert(Customer).values(id=1, name="twice"))
        assert list(session.held_locks) == [(Order, (1,))]
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("sqlite")
@pytest.mark.usefixtures("trigger")
def test_past_sqlalchemy(session: Session, elsewhere: Run) -> None:
    """The program uses the driver's connection, whose errors SQLAlchemy does not see."""

    def conflict(order: Order) -> None:
        driver: Any = session.connection().connection.driver_connection
        with pytest.raises(sqlite3.IntegrityError):
            driver.execute("INSERT OR ROLLBACK INTO lk_customer (id, name) VALUES (1, 'x')")
        elsewhere(sa.update(Order).where(Order.id == 1).values(total=50))
        order.total += 1

    with (
        pytest.raises(sa.exc.OperationalError, match="Order 1 on"),
        session.locked(Order, 1) as one,
    ):
        conflict(one)
    assert elsewhere(TOTALS) == [(50,), (5,)]


# --------------------------------------------------------------------------------------------------
# Statements of MySQL and MariaDB that implicitly commit the open transaction.

FIRST = (Order, (1,))
metadata = sa.MetaData()
cache = sa.Table("lk_cache", metadata, sa.Column("id", sa.Integer, primary_key=True))


def execute(statement: str) -> Callable[[Session], object]:
    return lambda session: session.execute(sa.text(statement))


def drop_by_metadata(session: Session) -> None:
    metadata.drop_all(session.connection())


def create_index(session: Session) -> None:
    copy = cache.to_metadata(sa.MetaData())  # the other tests' table has no index
    session.execute(sa.schema.CreateIndex(sa.Index("lk_cache_id", copy.c.id)))


WAYS_IMPLICIT_COMMIT = {
    "TRUNCATE": execute("TRUNCATE lk_cache"),
    "TRUNCATE, with a comment": execute("/* no more of it */ truncate table lk_cache"),
    "ALTER": execute("ALTER TABLE lk_cache COMMENT 'altered'"),
    "CREATE INDEX": create_index,
    "drop_all": drop_by_metadata,
    "LOCK TABLES": execute("LOCK TABLES lk_order WRITE, lk_cache WRITE"),
    "COMMIT": execute("COMMIT"),
    "COMMIT AND CHAIN": execute("COMMIT AND CHAIN"),
    "ROLLBACK": execute("ROLLBACK"),
    "BEGIN": execute("BEGIN"),
    "START TRANSACTION": execute("START TRANSACTION"),
}
KEEPING = {
    "CREATE TEMPORARY TABLE": execute("CREATE TEMPORARY TABLE lk_aside (id INT)"),
    "SET": execute("SET @number = 1"),
    "SELECT": execute("SELECT * FROM lk_cache"),
    "INSERT": execute("INSERT INTO lk_cache VALUES (1)"),
    "SAVEPOINT": execute("SAVEPOINT mine"),
    "DO": execute("DO 1"),
}


@pytest.fixture
def table(engine: sa.Engine) -> Iterator[None]:
    """Create a table that belongs to no document."""
    with engine.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    yield
    with engine.begin() as connection:
        metadata.drop_all(connection)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("way", WAYS_IMPLICIT_COMMIT)
def test_nothing_is_held_and_nothing_written(
    session: Session, other: Session, elsewhere: Run, way: str
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    WAYS_IMPLICIT_COMMIT[way](session)
    assert not session.held_locks
    if way != "LOCK TABLES":
        assert not finds_held()(other)
        session.get_one(Customer, 1)  # opens another transaction
        elsewhere(sa.update(Order).where(Order.id == 1).values(total=50))
    order.total += 1
    with pytest.raises(LockLost, match="Order 1: "):
        session.save_changes()
    session.rollback()
    if way == "LOCK TABLES":
        session.execute(sa.text("UNLOCK TABLES"))
        session.rollback()
    else:
        assert elsewhere(TOTALS) == [(50,), (5,)]
    with session.locked(Order, 1) as again:
        again.total = 60
    assert elsewhere(TOTALS) == [(60,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("way", KEEPING)
def test_what_commits_nothing(session: Session, other: Session, elsewhere: Run, way: str) -> None:
    with session.locked(Order, 1) as order:
        session.connection()
        KEEPING[way](session)
        session.lock_key("a")
        KEEPING["SET"](session)
        assert list(session.held_locks) == [FIRST]
        assert finds_held()(other)
        order.total = 31
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
def test_what_was_flushed_before_is_committed(session: Session, elsewhere: Run) -> None:
    """The block reports that its lock has gone, even if it writes nothing later."""

    def change() -> None:
        with session.locked(Order, 1) as order:
            order.total = 31
            session.flush()
            WAYS_IMPLICIT_COMMIT["TRUNCATE"](session)
            assert elsewhere(TOTALS) == [(31,), (5,)]

    with pytest.raises(LockLost, match="Order 1 on"):
        change()
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
def test_a_name_alone_outlives_it(session: Session, elsewhere: Run) -> None:
    session.lock_key("a")
    session.connection()
    KEEPING["SET"](session)
    WAYS_IMPLICIT_COMMIT["TRUNCATE"](session)
    session.get_one(Order, 1).total = 31  # under this name, which the connection still has
    session.save_changes()
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "statement",
    ["DROP TABLE lk_missing", "CREATE TABLE lk_order (id INT)", "CALL lk_fails()"],
)
def test_ddl_that_fails_commits_too(
    session: Session, other: Session, elsewhere: Run, statement: str
) -> None:
    elsewhere(
        sa.text("DROP PROCEDURE IF EXISTS lk_fails"),
        sa.text("CREATE PROCEDURE lk_fails() BEGIN COMMIT; SELECT * FROM lk_missing; END"),
    )
    session.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(DBAPIError):
        session.execute(sa.text(statement))
    assert not session.held_locks
    assert not finds_held()(other)
    with pytest.raises(PendingRollbackError):
        session.execute(sa.update(Order).where(Order.id == 1).values(total=31))
    session.rollback()
    elsewhere(sa.text("DROP PROCEDURE lk_fails"))
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
def test_a_procedure_that_commits(session: Session, other: Session, elsewhere: Run) -> None:
    elsewhere(
        sa.text("DROP PROCEDURE IF EXISTS lk_commits"),
        sa.text("CREATE PROCEDURE lk_commits() COMMIT"),
    )
    session.get_one_entity(Order, 1, ForUpdate)
    session.execute(sa.text("CALL lk_commits()"))
    assert not session.held_locks
    assert not finds_held()(other)
    elsewhere(sa.text("DROP PROCEDURE lk_commits"))


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "statement", ["SELECT * FROM lk_missing", "INSERT INTO lk_order VALUES (1, 1, '')", "NONSENSE"]
)
def test_what_fails_alone(session: Session, elsewhere: Run, statement: str) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        with pytest.raises(DBAPIError):
            session.execute(sa.text(statement))
        assert list(session.held_locks) == [FIRST]
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("table")
def test_the_next_transaction_has_the_level_of_its_first_lock(
    make_session: Callable[..., LockingSession],
) -> None:
    session = make_session()
    session.get_one_entity(Order, 1, ForUpdate)
    WAYS_IMPLICIT_COMMIT["TRUNCATE"](session)
    session.get_one_entity(Order, 1, ForUpdate)
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    WAYS_IMPLICIT_COMMIT["TRUNCATE"](session)
    session.get_one(Customer, 1)  # at the server's level
    with pytest.raises(WrongIsolation, match="REPEATABLE READ"):
        session.get_entity(Order, 1, ForUpdate)
    session.rollback()
    with session.locked(Order, 1) as order:
        order.total = 31
