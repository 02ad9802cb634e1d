"""An isolation level that SQLAlchemy has not set: the server is asked once for each engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions, WrongIsolation
from tests.integration.locking.connections import isolation_of
from tests.integration.locking.steps import FIRST, TEN_MORE, add_ten, reads, save, seen
from tests.support.actors import Actor
from tests.support.models import Customer, Order
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.quick, pytest.mark.databases("postgresql", "mysql", "mariadb")]

ForUpdate = LockOptions.ForUpdate
MakeEngine = Callable[..., sa.Engine]
SET_LEVEL = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL {}",
    "mariadb": "SET SESSION TRANSACTION ISOLATION LEVEL {}",
}


def listening(make_engine: MakeEngine, level: str) -> sa.Engine:
    """Return an engine whose connections get this level from a listener of the program's."""
    engine = make_engine(pool_size=1, max_overflow=0)

    def connected(connection: Any, _: object) -> None:
        product = "mysql" if engine.dialect.name in ("mysql", "mariadb") else "postgresql"
        with connection.cursor() as cursor:
            cursor.execute(SET_LEVEL[product].format(level))
        connection.commit()

    event.listen(engine, "connect", connected)
    return engine


@pytest.fixture
def strict(make_engine: MakeEngine) -> sa.Engine:
    return listening(make_engine, "REPEATABLE READ")


def test_what_is_read_under_the_lock_is_not_older(
    strict: sa.Engine, alice: Actor[LockingSession], dave: Callable[..., Actor[LockingSession]]
) -> None:
    waiter = dave(lambda: LockingSession(strict))
    alice.does(add_ten)
    step = waiter.starts(reads(lock_timeout=30))
    wait_until_blocked(waiter=waiter, holder=alice, step=step)
    alice.does(save)
    assert step.result(10) == TEN_MORE


@pytest.mark.parametrize("used_before", [False, True])
def test_an_open_transaction_is_refused(strict: sa.Engine, *, used_before: bool) -> None:
    with LockingSession(strict) as session:
        if used_before:
            session.get_one_entity(Order, 2, ForUpdate)
            session.rollback()
        session.get_one(Customer, 1)
        with pytest.raises(WrongIsolation, match="open at REPEATABLE READ"):
            session.get_entity(Order, 1, ForUpdate)


def test_the_level_of_the_program_is_there_again(strict: sa.Engine) -> None:
    with strict.connect() as connection:
        before = isolation_of(connection)
    with LockingSession(strict) as session:
        session.get_one_entity(Order, 1, ForUpdate)
    with strict.connect() as connection:
        assert isolation_of(connection)[0] == before[0]


def test_one_that_protects_a_document_is_no_reason_to_refuse(make_engine: MakeEngine) -> None:
    engine = listening(make_engine, "READ COMMITTED")
    with LockingSession(engine) as session:
        session.get_one(Customer, 1)
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == FIRST


def test_a_connection_that_was_lent_is_left_without_a_transaction(strict: sa.Engine) -> None:
    with strict.connect() as lent, LockingSession(lent) as session:
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == FIRST


@pytest.mark.parametrize("lock", [ForUpdate, LockOptions.SharedRead])
@pytest.mark.parametrize("level", ["repeatable read", "SERIALIZABLE", "READ  UNCOMMITTED"])
def test_a_level_of_a_text_is_seen(make_engine: MakeEngine, level: str, lock: LockOptions) -> None:
    """Of a transaction that has begun: before that, the level is the first lock's to set."""
    with LockingSession(make_engine(isolation_level="READ COMMITTED")) as session:
        session.execute(sa.text(f"set transaction isolation level {level}"))
        session.get_one(Customer, 1)
        expected = " ".join(level.upper().split())
        with pytest.raises(WrongIsolation, match=f"open at {expected}"):
            session.get_entity(Order, 1, lock)
        session.rollback()
        session.get_one(Customer, 1)
        assert seen(session.get_one_entity(Order, 1, lock)) == FIRST


@pytest.mark.databases("mysql", "mariadb")
def test_a_level_of_a_text_permits_a_lock(make_engine: MakeEngine) -> None:
    with LockingSession(make_engine()) as session:
        session.execute(sa.text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        session.get_one(Customer, 1)
        assert seen(session.get_one_entity(Order, 1, ForUpdate)) == FIRST
