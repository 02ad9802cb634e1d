"""rollback_session(): a program in a test that undoes everything at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
    claim_each,
    run_transaction,
)
from sa_doclock.testing import rollback_session
from tests.support.models import Base, Order, refill

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
NoWait, SnapshotRead = LockOptions.NoWait, LockOptions.SnapshotRead
TOTALS = sa.select(Order.total).order_by(Order.id)


@contextmanager
def rolled_back(engine: sa.Engine) -> Iterator[Callable[[], LockingSession]]:
    """Make sessions on one connection, and check that their changes are not stored."""
    with engine.connect() as connection:
        yield partial(rollback_session, connection)
    with engine.connect() as connection:
        stored = connection.scalars(TOTALS).all()
    assert stored == [30, 5]


@pytest.fixture
def make(make_engine: Callable[..., sa.Engine]) -> Iterator[Callable[[], LockingSession]]:
    with rolled_back(make_engine()) as make:
        yield make


def totals(make: Callable[[], LockingSession]) -> list[int]:
    with make() as session:
        return list(session.scalars(TOTALS))


def fail_after_flush(session: LockingSession, order: Order) -> int:
    order.total = 34
    session.flush()
    raise ZeroDivisionError


def test_save_changes_and_blocks(make: Callable[[], LockingSession]) -> None:
    with make() as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.save_changes()
        assert not session.held_locks
        with session.locked(Order, 1) as order:
            order.total += 1
            assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
        assert totals(make)[0] == 32
        session.get_one_entity(Order, 1, ForUpdate).total = 33
        session.rollback()
        with pytest.raises(ZeroDivisionError), session.locked(Order, 1) as order:
            order.total = fail_after_flush(session, order)
    assert totals(make)[0] == 32


def test_a_plain_write_first(make: Callable[[], LockingSession]) -> None:
    with make() as session:
        session.get_one(Order, 1).total = 31
        session.commit()
        session.get_one(Order, 1).total = 32
        session.flush()
        session.rollback()
    assert totals(make)[0] == 31


def test_on_commit(make: Callable[[], LockingSession]) -> None:
    called: list[str] = []
    with make() as session:
        with session.locked(Order, 1):
            session.on_commit(lambda: called.append("committed"))
            assert called == []
        assert called == ["committed"]
        session.get_entity(Order, 1, ForUpdate)
        session.on_commit(lambda: called.append("never"))
        session.rollback()
    assert called == ["committed"]


def test_snapshot_read(make: Callable[[], LockingSession]) -> None:
    with make() as session:
        order = session.get_one_entity(Order, 1, SnapshotRead)
        assert session.get_document(Order, 2, SnapshotRead) is not None
        assert dict(session.held_locks) == dict.fromkeys(
            [(Order, (1,)), (Order, (2,))], SnapshotRead
        )
        order.total = 31
        with pytest.raises(WrongIsolation):  # as in the program
            session.flush()
        session.rollback()
        with pytest.raises(WrongIsolation):
            session.get_entities(Order, [1], SnapshotRead) + session.get_entities(
                Order, [2], ForUpdate
            )
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate).total = 32
        with pytest.raises(WrongIsolation):
            session.get_entity(Order, 2, SnapshotRead)
        session.rollback()
        session.get_one_entity(Order, 1, SharedRead)
        session.release_locks()


def test_run_transaction(make: Callable[[], LockingSession]) -> None:
    attempts: list[int] = []

    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 1, ForUpdate).total += 1
        session.save_changes()
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise DeadlockDetected("as the test wants it")

    run_transaction(make, change, backoff=0)
    assert attempts == [0, 1]
    assert totals(make)[0] == 31


def test_claim_each(make: Callable[[], LockingSession]) -> None:
    for claim in claim_each(make, sa.select(Order).where(Order.total < 1000)):
        with claim as order:
            order.total += 1000
    assert totals(make) == [1030, 1005]


def test_a_session_beside_another(make: Callable[[], LockingSession]) -> None:
    with make() as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.commit()
        with make() as other:
            other.get_one_entity(Order, 1, ForUpdate).total += 1
            other.commit()
        assert session.get_one_entity(Order, 1, ForUpdate).total == 32


@pytest.mark.parametrize(
    "test",
    [
        test_save_changes_and_blocks,
        test_a_plain_write_first,
        test_on_commit,
        test_snapshot_read,
        test_run_transaction,
        test_claim_each,
        test_a_session_beside_another,
    ],
)
def test_in_memory(test: Callable[[Callable[[], LockingSession]], None]) -> None:
    engine = sa.create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        refill(connection)
    with rolled_back(engine) as make:
        test(make)
    engine.dispose()


def test_others_wait(make_engine: Callable[..., sa.Engine]) -> None:
    engine = make_engine()
    with engine.connect() as connection, rollback_session(connection) as session:
        session.get_entity(Order, 1, ForUpdate)
        session.commit()
        with LockingSession(engine) as other, pytest.raises(LockNotAvailable):
            other.get_entity(Order, 1, ForUpdate | NoWait)
    with LockingSession(engine) as other:
        assert other.get_entity(Order, 1, ForUpdate | NoWait) is not None


def test_the_transaction_of_the_program(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]
) -> None:
    with make_engine(**read_committed).connect() as connection:
        transaction = connection.begin()
        connection.execute(sa.update(Order).where(Order.id == 2).values(total=6))
        with rollback_session(connection, guard="off") as session:
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            session.commit()
        assert list(connection.scalars(TOTALS)) == [31, 6]
        transaction.rollback()
        assert list(connection.scalars(TOTALS)) == [30, 5]


@pytest.mark.databases("mysql", "mariadb")
def test_a_transaction_that_protects_nothing(make_engine: Callable[..., sa.Engine]) -> None:
    with make_engine().connect() as connection:
        connection.begin()
        with pytest.raises(WrongIsolation, match="REPEATABLE READ"):
            rollback_session(connection)


@pytest.mark.databases("sqlite")
def test_memory_is_locked_by_this_door_alone() -> None:
    engine = sa.create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with LockingSession(engine) as session, pytest.raises(LockNotSupported):
        session.get_entity(Order, 1, ForUpdate)
    with (
        engine.connect() as connection,
        LockingSession(connection) as session,
        pytest.raises(LockNotSupported),
    ):
        session.get_entity(Order, 1, ForUpdate)
    with engine.connect() as connection, rollback_session(connection) as session:
        assert session.get_entity(Order, 1, ForUpdate) is None
    engine.dispose()


@pytest.mark.not_databases("sqlite")  # it needs only a BEGIN
def test_autocommit_is_refused(make_engine: Callable[..., sa.Engine]) -> None:
    engine = make_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
        rollback_session(connection)


@pytest.mark.databases("sqlite")
def test_wrong_arguments(engine: sa.Engine) -> None:
    wrong: Any = rollback_session
    with pytest.raises(TypeError, match="Connection"):
        wrong(engine)
    with pytest.raises(TypeError, match="Connection"):
        wrong(Session(engine))
    with engine.connect() as connection, pytest.raises(TypeError, match="join_transaction_mode"):
        rollback_session(connection, join_transaction_mode="rollback_only")
