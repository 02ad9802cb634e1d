"""Locks that fail at a second database, in a flush, or in a listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DataError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.steps import is_free
from tests.support.databases import PIPELINED
from tests.support.models import Account, Customer, Line, Order
from tests.support.rows import rows

NoWait = LockOptions.NoWait


# --------------------------------------------------------------------------------------------------
# A session with two databases: a failed lock on one also stops the work on the other.

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Run = Callable[..., list[Any]]
NAMES = sa.select(Customer.name).where(Customer.id == 1)
RENAME = sa.update(Customer).where(Customer.id == 1).values(name="renamed")


@pytest.fixture
def session(
    make_engine: Callable[..., sa.Engine], engine: sa.Engine, read_committed: dict[str, Any]
) -> Iterator[LockingSession]:
    """Open a session with customers in another database than orders."""
    customers = make_engine(**read_committed)
    with Session(binds={Customer: customers, Order: engine}) as session:
        yield session


def fail(session: Session, other: Session) -> None:
    """Fail to lock order 1, in an open transaction."""
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)


def uses(session: Session) -> list[Callable[[], object]]:
    return [
        lambda: session.execute(RENAME),
        lambda: session.scalar(NAMES),
        lambda: session.connection(bind_arguments={"mapper": Customer}).execute(RENAME),
    ]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
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


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
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


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
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
        driver.execute("ROLLBACK TO SAVEPOINT mine")  # only the driver knows of it
        assert not session.held_locks
        session.get_one_entity(Order, 1, ForUpdate)
        session.commit()  # SQLite's drivers report no abort: there is none
    with other.connect() as connection:
        assert connection.scalar(sa.select(Customer.name).where(Customer.id == 77)) == "saved"
    other.dispose()


# --------------------------------------------------------------------------------------------------
# A lock fails in a listener of the last flush: the commit is refused, and nothing stays open.


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.parametrize("ends", [Session.close, Session.rollback], ids=["close", "rollback"])
def test_the_connection_goes_back_without_its_transaction(
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, str],
    other: Session,
    elsewhere: Callable[..., list[tuple[str]]],
    ends: Callable[[Session], None],
) -> None:
    other.get_one_entity(Order, 2, LockOptions.ForUpdate)
    engine = make_engine(pool_size=1, max_overflow=0, **read_committed)
    session = Session(engine)

    @event.listens_for(session, "after_flush")
    def lock(session: Session, _: object) -> None:
        with suppress(LockNotAvailable):
            session.get_entity(Order, 2, LockOptions.ForUpdate | LockOptions.NoWait)

    session.get_one(Customer, 1).name = "never"
    with pytest.raises(PendingRollbackError):
        session.commit()
    ends(session)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
        connection.commit()
    ((name,),) = elsewhere(sa.select(Customer.name).where(Customer.id == 1))
    assert name != "never"
    session.close()


# --------------------------------------------------------------------------------------------------
# A listener raises: the caller gets its error, and the session continues or refuses to.
#
# Each event is one row. The listener raises at its first call, then at its second, and so on.


class Mistake(Exception):
    """The error of the program's own listener."""


OF_SESSION = (
    "after_transaction_create",
    "after_begin",
    "do_orm_execute",
    "loaded_as_persistent",
    "transient_to_pending",
    "pending_to_persistent",
    "before_flush",
    "after_flush",
    "after_flush_postexec",
    "before_commit",
    "after_commit",
    "after_rollback",
    "after_soft_rollback",
    "after_transaction_end",
    "before_lock",
    "lock_acquired",
    "locks_released",
)
OF_ENGINE = (
    "begin",
    "before_execute",
    "before_cursor_execute",
    "after_cursor_execute",
    "savepoint",
    "release_savepoint",
    "rollback_savepoint",
    "rollback",
    "commit",
)
OF_POOL = "checkout", "reset"  # a checkin listener's error loses the connection
OF_OBJECTS = "load", "refresh", "expire"
EVENTS = [
    *[("session", name) for name in OF_SESSION],
    *[("engine", name) for name in OF_ENGINE],
    *[("pool", name) for name in OF_POOL],
    *[("objects", name) for name in OF_OBJECTS],
]


class Listener:
    """Raises at one of its calls.

    :param number: the number of calls before that.
    """

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, *_: Any, **__: Any) -> None:
        self.left -= 1
        if self.left == -1:
            raise Mistake


def use(session: LockingSession) -> None:
    session.begin()
    order = session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5)
    with session.begin_nested():
        session.get_one_entity(Order, 2, ForUpdate).total += 1
        session.add(Line(id=99, order=order, name="x", value=1))
    savepoint = session.begin_nested()
    session.get_one_entity(Order, 2, ForUpdate).total += 1
    session.flush()
    savepoint.rollback()
    savepoint = session.begin_nested()
    session.get_one_entity(Account, 1, ForUpdate)
    savepoint.rollback()
    session.refresh(order)
    session.scalars(sa.select(Line)).all()
    session.commit()
    session.get_one_entity(Order, 1, ForUpdate)
    session.rollback()


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.not_databases(PIPELINED)
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@rows("of, name", EVENTS)
def test_its_error_comes_out(
    make_engine: Callable[..., sa.Engine], start_over: Callable[[], None], of: str, name: str
) -> None:
    other, raised, number = LockingSession(make_engine()), True, 0
    while raised:
        engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=1)
        session = LockingSession(engine)
        target = {
            "session": LockingSession,
            "engine": engine,
            "pool": engine.pool,
            "objects": Order,
        }[of]
        raised = raises_at(session, target, name, number)
        assert not [key for key in said_by(session) if is_free(other, *key)], number
        use_afterwards(session)
        session.close()
        assert engine.pool.checkedout() == 0, number  # type: ignore[attr-defined]
        assert is_free(other, Order, 1), number
        engine.dispose()
        start_over()
        number += 1
    assert number > 1  # called at least once
    other.close()


def raises_at(session: LockingSession, target: Any, name: str, number: int) -> bool:
    """Use the session; return whether the listener raised, and expect its error."""
    listener, error = Listener(number), None
    event.listen(target, name, listener, insert=True)  # before the library's listeners
    try:
        use(session)
    except Exception as caught:  # noqa: BLE001  # whatever it is
        error = caught
    event.remove(target, name, listener)
    assert error is None or Mistake in map(type, causes_of(error)), number
    return listener.left < 0  # a pool logs it


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes and contexts; SQLAlchemy sometimes raises another on top."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def said_by(session: LockingSession) -> list[tuple[type[Any], int]]:
    with suppress(sa.exc.SQLAlchemyError):
        return [(entity, key) for entity, (key,) in session.held_locks]
    return []


def use_afterwards(session: LockingSession) -> None:
    """Lock again, after close() if a COMMIT did not end and SQLAlchemy needs it."""
    try:
        session.rollback()
        session.get_one_entity(Order, 1, ForUpdate | NoWait)
    except sa.exc.SQLAlchemyError:
        session.close()
        session.get_one_entity(Order, 1, ForUpdate | NoWait)
    session.rollback()
