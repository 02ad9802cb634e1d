"""A session with two databases: a lock that fails at the one stops the work at the other too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.not_databases("sqlite"), pytest.mark.read_committed]

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
Session = LockingSession
Run = Callable[..., list[Any]]
NAMES = sa.select(Customer.name).where(Customer.id == 1)
RENAME = sa.update(Customer).where(Customer.id == 1).values(name="renamed")


@pytest.fixture
def session(
    make_engine: Callable[..., sa.Engine], engine: sa.Engine, read_committed: dict[str, Any]
) -> Iterator[LockingSession]:
    """Open a session that has customers in another database than orders."""
    customers = make_engine(**read_committed)
    with Session(binds={Customer: customers, Order: engine}) as session:
        yield session


def fail(session: Session, other: Session) -> None:
    """Fail to lock order 1, in a transaction that is open."""
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)


def uses(session: Session) -> list[Callable[[], object]]:
    return [
        lambda: session.execute(RENAME),
        lambda: session.scalar(NAMES),
        lambda: session.connection(bind_arguments={"mapper": Customer}).execute(RENAME),
    ]


@pytest.mark.parametrize("used_before", [False, True])
def test_every_statement_is_refused(
    session: Session, other: Session, elsewhere: Run, *, used_before: bool
) -> None:
    session.get_one(Order, 2)
    if used_before:
        session.get_one(Customer, 1)
    fail(session, other)
    for use in uses(session):
        with pytest.raises(PendingRollbackError, match="failed to take a lock"):
            use()
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    assert elsewhere(NAMES) == [("Ann",)]
    session.execute(RENAME)
    session.commit()
    assert elsewhere(NAMES) == [("renamed",)]


def test_until_the_rollback_of_a_savepoint(
    session: Session, other: Session, elsewhere: Run
) -> None:
    session.get_one(Order, 2)
    with session.begin_nested() as savepoint:
        fail(session, other)
        with pytest.raises(PendingRollbackError):
            session.execute(RENAME)
        savepoint.rollback()
    session.execute(RENAME)
    session.commit()
    assert elsewhere(NAMES) == [("renamed",)]


@pytest.mark.databases("postgresql")
def test_an_abort_that_was_undone_is_none_of_another_database(
    engine: sa.Engine, tmp_path: Path
) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    Customer.metadata.create_all(other, [sa.Table("lk_customer", Customer.metadata)])
    with Session(binds={Customer: other, Order: engine}) as session:
        session.add(Customer(id=77, name="saved"))
        session.flush()
        session.get_one_entity(Order, 1, ForUpdate)
        connection = session.connection(bind_arguments={"mapper": Order})
        connection.exec_driver_sql("SAVEPOINT mine")
        with pytest.raises(DataError):
            connection.exec_driver_sql("SELECT 1 / 0")
        driver: Any = connection.connection.driver_connection
        driver.execute("ROLLBACK TO SAVEPOINT mine")  # the driver alone knows of it
        session.commit()  # no driver tells of SQLite whether an error has aborted it: none does
    with other.connect() as connection:
        assert connection.scalar(sa.select(Customer.name).where(Customer.id == 77)) == "saved"
    other.dispose()
