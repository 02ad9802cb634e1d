"""Locks through psycopg2, SQLAlchemy's default driver for PostgreSQL: waits, timeouts, ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from sa_doclock import (
    LockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
)
from tests.support.databases import PIPELINED, Database
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.databases("postgresql"),
    pytest.mark.not_databases(PIPELINED),  # only psycopg has a pipeline
    pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning"),
]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
LOCKS: dict[str, Callable[[LockingSession], object]] = {
    "row": lambda session: session.get_one_entity(Order, 2, ForUpdate, lock_timeout=0),
    "shared": lambda session: session.get_one_entity(Order, 2, SharedRead, lock_timeout=0),
    "set": lambda session: session.scalars(
        session.entity_set(Order, ForUpdate | LockOptions.NoWait).where(Order.id == 2)
    ).one(),
    "with_for_update": lambda session: session.get_one(Order, 2, with_for_update={"nowait": True}),
    "name": lambda session: session.lock_key("a name", lock_timeout=0),
}
each_lock = pytest.mark.parametrize("take", LOCKS.values(), ids=LOCKS)


@pytest.fixture
def engine(documents: Database) -> Iterator[sa.Engine]:
    """Connect with psycopg2 to the database with the documents."""
    pytest.importorskip("psycopg2", reason="it is in the group test")
    engine = sa.create_engine(sa.make_url(documents.url).set(drivername="postgresql+psycopg2"))
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[LockingSession]:
    with LockingSession(engine) as session:
        yield session


@pytest.fixture
def other(engine: sa.Engine) -> Iterator[LockingSession]:
    """Return a session that tries to lock the document held by the first."""
    with LockingSession(engine) as session:
        yield session


def is_held(other: LockingSession, take: Callable[[LockingSession], object]) -> bool:
    """Return whether another session is refused the same lock."""
    exclusive = LOCKS["name"] if take is LOCKS["name"] else LOCKS["row"]
    try:
        exclusive(other)
    except LockNotAvailable:
        return True
    finally:
        other.rollback()
    return False


@each_lock
def test_it_is_held_until_the_end(
    session: LockingSession, other: LockingSession, take: Callable[[LockingSession], object]
) -> None:
    take(session)
    assert session.held_locks or take is LOCKS["name"]
    assert is_held(other, take)
    session.rollback()
    assert not is_held(other, take)


def test_a_limit_ends_the_wait_and_is_put_back(
    session: LockingSession, other: LockingSession
) -> None:
    LOCKS["row"](session)
    with pytest.raises(LockNotAvailable):
        other.get_one_entity(Order, 2, ForUpdate, lock_timeout=0.1)
    other.rollback()
    other.get_one_entity(Order, 1, ForUpdate, lock_timeout=7)
    assert other.scalar(sa.text("SHOW lock_timeout")) == "0"


@each_lock
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_in_no_transaction_it_is_refused(
    session: LockingSession,
    other: LockingSession,
    take: Callable[[LockingSession], object],
    end: str,
) -> None:
    session.execute(sa.update(Customer).values(name=Customer.name))
    session.execute(sa.text(end))
    with pytest.raises(LockMisuse, match="ended with its statement"):
        take(session)
    assert not session.held_locks
    session.rollback()
    take(session)
    assert is_held(other, take)


def test_a_transaction_that_has_ended_is_noticed(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 2, ForUpdate)
    session.connection().connection.dbapi_connection.commit()  # type: ignore[union-attr]
    assert not session.held_locks
    order.total = 6
    with pytest.raises(LockLost):
        session.save_changes()


def test_it_has_no_pipeline(engine: sa.Engine) -> None:
    with (
        LockingSession(engine, pipeline=True) as session,
        pytest.raises(LockNotSupported, match="needs PostgreSQL with psycopg 3"),
    ):
        LOCKS["row"](session)
