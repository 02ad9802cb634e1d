"""with_for_update(read=True), then with_for_update(): the program's own way to upgrade a lock.

A plain Session may do so on every database.  If the read is a SQLite snapshot, the lock is granted
only if the snapshot is still the newest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockUpgradeRefused,
    SnapshotConflict,
    WrongIsolation,
    run_transaction,
)
from tests.integration.locking.steps import add_ten, finds_held, recorded, roll_back, save
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order

ForUpdate, SharedRead, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
Session = LockingSession
ORDERS: Any = Order.__table__
FIRST = sa.select(Order).where(Order.id == 1)
SECOND = sa.select(Order).where(Order.id == 2)
TOTAL = sa.select(Order.total).where(Order.id == 1)


def writers_commit_beside_readers(test: Any) -> Any:
    """Mark a test for SQLite in WAL mode: with a rollback journal a reader blocks every commit."""
    reported = pytest.mark.skipif(
        sys.version_info < (3, 11), reason="sqlite3 tells no error numbers before Python 3.11"
    )
    in_wal_mode = pytest.mark.not_databases("sqlite-journal")(test)
    return reported(pytest.mark.databases("sqlite")(in_wal_mode))


def read_shared(session: Session) -> Order:
    return session.scalars(FIRST.with_for_update(read=True)).one()


def upgrade(session: Session) -> Order:
    return session.scalars(FIRST.with_for_update()).one()


def add_one(session: Session) -> None:
    """Read with the weaker lock, and write under the stronger one."""
    read_shared(session)
    upgrade(session).total += 1


UPGRADES: dict[str, Callable[[Session], object]] = {
    "select": upgrade,
    "get": lambda s: s.get(Order, 1, with_for_update=True),
    "refresh": lambda s: s.refresh(s.get_one(Order, 1), with_for_update=True),
    "of a table": lambda s: s.execute(sa.select(ORDERS).with_for_update()).all(),
    "within": lambda s: s.execute(sa.select(FIRST.with_for_update().subquery())).all(),
}


@pytest.mark.read_committed
@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
def test_it_is_granted(
    session: Session, other: Session, upgrade: Callable[[Session], object]
) -> None:
    order = read_shared(session)
    upgrade(session)
    assert finds_held()(other)
    order.total += 1
    session.commit()
    assert other.scalar(TOTAL) == 31


@pytest.mark.read_committed
def test_it_is_recorded(session: Session) -> None:
    read_shared(session)
    upgrade(session)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}


@pytest.mark.read_committed
def test_a_lock_of_ours_is_refused_the_upgrade(session: Session) -> None:
    read_shared(session)
    with pytest.raises(LockUpgradeRefused):
        session.get_entity(Order, 1, ForUpdate)


@pytest.mark.read_committed
def test_a_lock_of_ours_may_follow(session: Session, other: Session) -> None:
    read_shared(session)
    upgrade(session)
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    assert finds_held(Order, 2)(other)
    session.save_changes()


@pytest.mark.read_committed
def test_it_may_follow_a_read_of_ours(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, SharedRead)
    session.scalars(SECOND.with_for_update()).one().total = 6
    assert finds_held(Order, 2)(other)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead, (Order, (2,)): ForUpdate}
    session.commit()


@pytest.mark.read_committed
def test_a_savepoint_that_is_rolled_back_takes_the_record_along(
    session: Session, other: Session
) -> None:
    read_shared(session)
    savepoint = session.begin_nested()
    upgrade(session)
    savepoint.rollback()
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}
    upgrade(session)
    assert finds_held()(other)


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
def test_sqlite_keeps_the_lock_of_a_savepoint_that_is_rolled_back(
    session: Session, other: Session
) -> None:
    read_shared(session)
    savepoint = session.begin_nested()
    upgrade(session)
    savepoint.rollback()
    assert finds_held()(other)
    session.rollback()
    assert not finds_held()(other)


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
def test_the_write_lock_is_taken_once(engine: sa.Engine, session: Session) -> None:
    read_shared(session)
    upgrade(session)
    with recorded(engine) as statements:
        upgrade(session)
    assert len(statements) == 1


@pytest.mark.read_committed
@writers_commit_beside_readers
def test_a_snapshot_that_is_old_is_a_conflict_and_no_update_is_lost(
    session: Session, other: Session, elsewhere: Callable[..., list[Any]]
) -> None:
    read_shared(session)
    other.get_one_entity(Order, 1, ForUpdate).total = 40
    other.commit()
    with pytest.raises(SnapshotConflict, match=r"^Order rows FOR UPDATE"):
        upgrade(session)
    assert dict(session.held_locks) == {(Order, (1,)): SharedRead}
    with pytest.raises(WrongIsolation):  # it reads a snapshot, as before
        session.get_entity(Order, 2, ForUpdate)
    session.rollback()
    add_one(session)
    session.commit()
    assert elsewhere(TOTAL) == [(41,)]


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
def test_another_writer_is_not_waited_for(alice: Actor[Session], bob: Actor[Session]) -> None:
    bob.does(read_shared)
    alice.does(add_ten)
    with pytest.raises(LockNotAvailable):  # the wait would end in a conflict
        bob.does(upgrade)
    bob.does(roll_back)
    alice.does(save)
    bob.does(add_one)
    bob.does(save)
    assert bob.does(lambda session: session.scalar(TOTAL)) == 41


@pytest.mark.read_committed
@writers_commit_beside_readers
def test_run_transaction_repeats_a_conflict(session_factory: Any, other: Session) -> None:
    attempts: list[int] = []

    def work(session: Session) -> None:
        read_shared(session)
        attempts.append(1)
        if len(attempts) == 1:
            other.get_one_entity(Order, 1, ForUpdate).total = 40
            other.commit()
        upgrade(session).total += 1

    run_transaction(session_factory, work, backoff=0)
    assert len(attempts) == 2
    assert other.scalar(TOTAL) == 41


@pytest.mark.read_committed
@pytest.mark.databases("sqlite")
def test_a_snapshot_read_is_not_upgraded(session: Session) -> None:
    session.get_one_entity(Order, 1, SnapshotRead)
    with pytest.raises(WrongIsolation, match="read-only"):
        upgrade(session)


# --------------------------------------------------------------------------------------------------
# with_for_update() under AUTOCOMMIT cannot hold a lock, and is refused for every class.


class Base(DeclarativeBase):
    pass


class Undeclared(Base):
    __tablename__ = "lk_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


class Elsewhere(Base):
    __tablename__ = "lk_customer"
    id: Mapped[int] = mapped_column(primary_key=True)


TABLE: Any = Undeclared.__table__
AUTOCOMMIT: Any = {"isolation_level": "AUTOCOMMIT"}


def _of_engine(database: Database) -> LockingSession:
    return LockingSession(database.engine(**AUTOCOMMIT))


def _of_engine_options(database: Database) -> LockingSession:
    return LockingSession(database.engine().execution_options(**AUTOCOMMIT))


def _of_lent_connection(database: Database) -> LockingSession:
    return LockingSession(database.engine().connect().execution_options(**AUTOCOMMIT))


def _of_session_connection(database: Database) -> LockingSession:
    session = LockingSession(database.engine())
    session.connection(execution_options=AUTOCOMMIT)
    return session


WAYS: dict[str, Callable[[Database], LockingSession]] = {
    "engine": _of_engine,
    "execution_options() of an engine": _of_engine_options,
    "a lent connection": _of_lent_connection,
    "session.connection()": _of_session_connection,
}

LOCKING = sa.select(Undeclared).where(Undeclared.id == 1).with_for_update()
STATEMENTS: dict[str, Callable[[LockingSession], Any]] = {
    "undeclared": lambda session: session.scalars(LOCKING).all(),
    "declared": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "get": lambda session: session.get(Undeclared, 1, with_for_update=True),
    "Query.get": lambda session: session.query(Undeclared).with_for_update().get(1),
    "table": lambda session: session.execute(sa.select(TABLE).with_for_update(read=True)).all(),
    "a column": lambda session: session.execute(
        sa.select(Undeclared.total).with_for_update()
    ).all(),
    "for key share": lambda session: session.scalars(
        sa.select(Undeclared).with_for_update(read=True, key_share=True)
    ).all(),
    "stream": lambda session: session.scalars(LOCKING, execution_options={"yield_per": 1}).all(),
    "count": lambda session: session.query(Undeclared).with_for_update().count(),
    "EXISTS": lambda session: session.scalar(sa.select(LOCKING.exists())),
    "connection": lambda session: session.connection().execute(LOCKING).all(),
    "UPDATE": lambda session: session.execute(
        sa.update(Elsewhere)
        .where(Elsewhere.id.in_(sa.select(sa.select(Undeclared.id).with_for_update().subquery())))
        .values(id=Elsewhere.id)
    ),
}


@pytest.mark.each_value
@pytest.mark.filterwarnings("ignore:The Query.get")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("run", STATEMENTS.values(), ids=STATEMENTS)
def test_it_is_refused(
    documents: Database,
    way: Callable[[Database], LockingSession],
    run: Callable[[LockingSession], Any],
) -> None:
    session = way(documents)
    lent = session.bind if isinstance(session.bind, sa.Connection) else nullcontext()
    with lent, session, pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
        run(session)


@pytest.mark.filterwarnings("ignore:The Query.get")
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("run", STATEMENTS.values(), ids=STATEMENTS)
def test_it_is_refused_where_the_program_has_set_it_in_the_driver(
    documents: Database, run: Callable[[LockingSession], Any]
) -> None:
    with LockingSession(documents.engine()) as session:
        driver: Any = session.connection().connection.dbapi_connection
        if callable(driver.autocommit):  # PyMySQL
            driver.autocommit(True)
        else:
            driver.autocommit = True
        with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
            run(session)
