"""A Connection that was lent is in somebody else's transaction, however the session came to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import DeadlockDetected, LockingSession, LockMisuse, run_transaction
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks
from tests.support.models import Customer

pytestmark = [pytest.mark.databases("sqlite"), pytest.mark.not_databases("sqlite-journal")]

Make = Callable[..., LockingSession]
Run = Callable[..., list[Any]]
TABLE: Any = Customer.__table__
RENAME = sa.update(Customer).where(Customer.id == 1).values(name="lender")


def by_bind_mapper(lent: sa.Connection, **how: Any) -> LockingSession:
    session = LockingSession(lent.engine, **how)
    session.bind_mapper(Customer, lent)
    return session


def by_bind_table(lent: sa.Connection, **how: Any) -> LockingSession:
    session = LockingSession(lent.engine, **how)
    session.bind_table(TABLE, lent)
    return session


def by_get_bind(lent: sa.Connection, **how: Any) -> LockingSession:
    class Routing(LockingSession):
        def get_bind(self, mapper: Any = None, clause: Any = None) -> sa.Connection:  # type: ignore[override]
            return lent

    return Routing(**how)


MAKERS = [by_bind_mapper, by_bind_table, by_get_bind]


def forget(_: object) -> None:
    """Return nothing, whatever was done."""


def with_the_connection(lent: sa.Connection) -> Callable[[Session], None]:
    return lambda session: forget(session.connection(bind_arguments={"bind": lent}))


def with_a_statement(lent: sa.Connection) -> Callable[[Session], None]:
    return lambda session: forget(session.scalar(NAMES, bind_arguments={"bind": lent}))


def with_bind_mapper(lent: sa.Connection) -> Callable[[Session], None]:
    return lambda session: session.bind_mapper(Customer, lent)


@pytest.fixture
def lent(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Lend a Connection, in whose transaction something was changed."""
    with engine.connect() as lent:
        lent.execute(RENAME)
        yield lent


@pytest.mark.parametrize("make", MAKERS)
def test_its_transaction_is_not_run_again(lent: sa.Connection, elsewhere: Run, make: Make) -> None:
    fn = Counted(*deadlocks(1), act=lambda session: forget(session.get_one(Customer, 1)))
    with pytest.raises(LockMisuse, match="with an open transaction"):
        run_transaction(lambda: make(lent), fn)
    assert lent.in_transaction()
    lent.commit()
    assert elsewhere(NAMES)[0] == (1, "lender")


@pytest.mark.parametrize("way", [with_the_connection, with_a_statement, with_bind_mapper])
def test_nor_where_the_function_brings_it(
    engine: sa.Engine,
    lent: sa.Connection,
    elsewhere: Run,
    way: Callable[[sa.Connection], Callable[[Session], None]],
) -> None:
    fn = Counted(*deadlocks(1), act=way(lent))
    with pytest.raises(LockMisuse, match="with an open transaction"):
        run_transaction(lambda: LockingSession(engine), fn)
    assert lent.in_transaction()
    lent.commit()
    assert elsewhere(NAMES)[0] == (1, "lender")


@pytest.mark.parametrize("make", MAKERS)
def test_in_a_savepoint_it_runs_and_is_not_repeated(
    lent: sa.Connection, elsewhere: Run, make: Make
) -> None:
    def factory() -> LockingSession:
        return make(lent, join_transaction_mode="create_savepoint")

    assert run_transaction(factory, lambda session: session.get_one(Customer, 1).name) == "lender"
    failing = Counted(*deadlocks(1), act=lambda session: forget(session.get_one(Customer, 1)))
    with pytest.raises(DeadlockDetected):
        run_transaction(factory, failing)
    assert failing.runs == 1
    lent.commit()
    assert elsewhere(NAMES)[0] == (1, "lender")


@pytest.mark.parametrize("make", MAKERS)
def test_one_that_is_in_no_transaction_is_the_sessions(
    engine: sa.Engine, elsewhere: Run, make: Make
) -> None:
    def rename(session: Session) -> None:
        session.get_one(Customer, 1).name = "ours"
        session.flush()

    fn = Counted(*deadlocks(1), act=rename)
    with engine.connect() as connection:
        assert run_transaction(lambda: make(connection), fn) == 2
        assert not connection.in_transaction()
    assert elsewhere(NAMES)[0] == (1, "ours")


def test_outside_of_run_transaction_it_may_be_lent(lent: sa.Connection) -> None:
    session = LockingSession(lent.engine)
    run_transaction(lambda: session, forget)
    session.bind_mapper(Customer, lent)
    assert session.get_one(Customer, 1).name == "lender"
    session.close()
