"""The program ends a transaction or a savepoint on the session's own Connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.read_committed,
    # SQLAlchemy warns of every session whose Connection was committed or rolled back.
    pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning"),
]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
FIRST, SECOND = (Order, (1,)), (Order, (2,))
Session = LockingSession
Run = Callable[..., list[Any]]
MakeEngine = Callable[..., sa.Engine]
TOTALS = sa.select(Order.total).order_by(Order.id)
SECOND_TOTAL = sa.update(Order).where(Order.id == 1).values(total=50)

ENDS: dict[str, Callable[[sa.Connection], object]] = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "close": lambda connection: connection.close(),
    "text": lambda connection: connection.execute(sa.text("COMMIT")),
    "driver": lambda connection: connection.exec_driver_sql("ROLLBACK"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_nothing_is_held_and_nothing_written(
    session: Session, other: Session, elsewhere: Run, lock: LockOptions, end: str
) -> None:
    order = session.get_one_entity(Order, 1, lock)
    ENDS[end](session.connection())
    assert not session.held_locks
    assert not finds_held()(other)
    elsewhere(SECOND_TOTAL)
    order.total += 1
    with pytest.raises(LockLost) as caught:
        session.save_changes()
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    assert not caught.value.retryable
    session.rollback()
    assert elsewhere(TOTALS) == [(50,), (5,)]
    with session.locked(Order, 1) as again:
        again.total += 1
    assert elsewhere(TOTALS) == [(51,), (5,)]


@pytest.mark.parametrize("end", ["commit", "text"])
def test_it_can_be_locked_again(session: Session, other: Session, elsewhere: Run, end: str) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.flush()
    ENDS[end](session.connection())
    elsewhere(SECOND_TOTAL)
    order = session.get_one_entity(Order, 1, ForUpdate)
    assert order.total == 50
    assert finds_held()(other)
    assert list(session.held_locks) == [FIRST]
    order.total += 1
    session.flush()
    assert elsewhere(TOTALS)[0] == (50,)
    session.connection().commit()
    assert elsewhere(TOTALS) == [(51,), (5,)]


def test_a_statement_that_writes_is_refused(session: Session, elsewhere: Run) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.connection().commit()
    with pytest.raises(LockLost):
        session.execute(sa.update(Order).where(Order.id == 1).values(total=31))
    with pytest.raises(LockLost):
        session.bulk_update_mappings(Order, [{"id": 1, "total": 31}])
    assert elsewhere(TOTALS) == [(30,), (5,)]


def test_text_of_the_session_itself(session: Session, other: Session, elsewhere: Run) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(sa.text("ROLLBACK"))
    session.get_one(Customer, 1)  # another transaction
    assert not session.held_locks
    assert not finds_held()(other)
    order.total = 31
    with pytest.raises(LockLost):
        session.commit()
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


def test_a_commit_with_nothing_to_write(session: Session, elsewhere: Run) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.flush()
    session.execute(sa.text("COMMIT"))
    session.commit()
    assert not session.in_transaction()
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("postgresql", "sqlite")  # the status is correct at any time
@pytest.mark.parametrize(
    "take",
    [
        lambda session: session.get_one_entity(Order, 1, ForUpdate),
        lambda session: session.get_one(Order, 1, with_for_update=True),
    ],
    ids=["get_entity", "with_for_update"],
)
def test_past_sqlalchemy(
    session: Session, elsewhere: Run, take: Callable[[Session], Order]
) -> None:
    order = take(session)
    driver: Any = session.connection().connection.dbapi_connection
    driver.commit()
    assert not session.held_locks
    order.total = 31
    with pytest.raises(LockLost):
        session.flush()
    session.rollback()
    take(session).total = 32
    session.flush()
    driver = session.connection().connection.dbapi_connection
    driver.rollback()
    with pytest.raises(LockLost, match="Order 1: "):
        session.commit()
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


@pytest.mark.databases("sqlite", "postgresql")  # MySQL's drivers do not report it
def test_past_the_connection(session: Session, elsewhere: Run) -> None:
    """Nothing prompted the session to query the server: only the driver knows."""
    drivers: list[Any] = []

    def note(driver: Any, *_: object) -> None:
        drivers.append(driver)

    sa.event.listen(session.get_bind(), "checkout", note)
    order = session.get_one_entity(Order, 1, ForUpdate)
    sa.event.remove(session.get_bind(), "checkout", note)
    order.total = 31
    drivers[0].commit()
    with pytest.raises(LockLost, match="Order 1: "):
        session.flush()
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


def test_a_savepoint_of_the_connection(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint = session.connection().begin_nested()
    session.get_one_entity(Order, 2, ForUpdate)
    assert list(session.held_locks) == [FIRST, SECOND]
    savepoint.rollback()
    assert list(session.held_locks) == [FIRST]
    with session.connection().begin_nested():
        session.get_one_entity(Order, 2, ForUpdate)
    assert list(session.held_locks) == [FIRST, SECOND]
    session.connection().begin_nested().rollback()
    assert list(session.held_locks) == [FIRST, SECOND]


def test_savepoints_inside_of_each_other(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    outer = session.connection().begin_nested()
    session.get_one_entity(Order, 2, ForUpdate)
    with session.connection().begin_nested():
        session.lock_key("a")
    session.connection().begin_nested()
    outer.rollback()
    assert list(session.held_locks) == [FIRST]
    with session.begin_nested() as inner:
        session.get_one_entity(Order, 2, ForUpdate)
        session.connection().begin_nested().rollback()
        assert list(session.held_locks) == [FIRST, SECOND]
        inner.rollback()
    assert list(session.held_locks) == [FIRST]


def by_text(session: Session, verb: str, name: str = "mine") -> None:
    """Set a savepoint, roll back to it or release it; SQL Server has no RELEASE."""
    if session.get_bind().dialect.name != "mssql":
        session.execute(sa.text(f"{verb} SAVEPOINT {name}".replace("SET ", "")))
    elif verb != "RELEASE":
        session.execute(
            sa.text({"SET": "SAVE", "ROLLBACK TO": "ROLLBACK"}[verb] + f" TRANSACTION {name}")
        )


def test_a_savepoint_by_text(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    by_text(session, "SET")
    for _ in range(2):
        session.get_one_entity(Order, 2, ForUpdate)
        assert list(session.held_locks) == [FIRST, SECOND]
        by_text(session, "ROLLBACK TO")
        assert list(session.held_locks) == [FIRST]
    session.get_one_entity(Order, 2, ForUpdate)
    by_text(session, "RELEASE")
    assert list(session.held_locks) == [FIRST, SECOND]
    with pytest.raises(DBAPIError):
        by_text(session, "ROLLBACK TO", "nowhere")  # only PostgreSQL releases the lock
    kept = [] if session.get_bind().dialect.name == "postgresql" else [FIRST, SECOND]
    assert list(session.held_locks) == kept


def test_a_savepoint_by_text_before_the_lock(session: Session) -> None:
    by_text(session, "SET")
    session.get_one_entity(Order, 1, ForUpdate)
    by_text(session, "ROLLBACK TO")
    assert not session.held_locks


def test_a_savepoint_of_the_session_before(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        session.connection()
        savepoint.rollback()
    assert list(session.held_locks) == [FIRST]


def test_a_savepoint_of_the_session_that_the_program_rolls_back(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as outer, session.begin_nested():
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint = session.connection().get_nested_transaction()
        assert savepoint is not None
        savepoint.rollback()
        assert list(session.held_locks) == [FIRST]
        outer.rollback()
    assert list(session.held_locks) == [FIRST]


def test_a_commit_of_the_whole_that_has_failed_in_a_savepoint(
    session: Session, other: Session
) -> None:
    root = session.begin()
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint = session.begin_nested()
    session.add(Customer(id=1, name="twice"))
    with pytest.raises(DBAPIError):
        root.commit()
    savepoint.rollback()
    assert list(session.held_locks) == [FIRST]
    session.connection().commit()  # not the session's own
    assert not session.held_locks
    assert not finds_held()(other)


@pytest.mark.databases("postgresql")  # it releases the locks of a savepoint
def test_the_server_agrees(session: Session, other: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint = session.connection().begin_nested()
    session.get_one_entity(Order, 2, ForUpdate)
    savepoint.rollback()
    assert finds_held(Order, 1)(other)
    assert not finds_held(Order, 2)(other)


@pytest.mark.parametrize("deep", [False, True])
def test_an_error_in_a_savepoint_of_the_connection(
    session: Session, other: Session, elsewhere: Run, *, deep: bool
) -> None:
    with session.locked(Order, 1) as order:
        connection = session.connection()
        outer = connection.begin_nested() if deep else None
        with pytest.raises(DBAPIError), connection.begin_nested():
            connection.execute(sa.insert(Customer).values(id=1, name="twice"))
        if outer is not None:
            outer.commit()
        assert list(session.held_locks) == [FIRST]
        assert finds_held()(other)
        order.total = 31
    assert elsewhere(TOTALS) == [(31,), (5,)]


@pytest.mark.databases("postgresql")
def test_an_error_that_is_not_rolled_back(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    connection = session.connection()
    with connection.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(DBAPIError):
            connection.execute(sa.insert(Customer).values(id=1, name="twice"))
        assert list(session.held_locks) == [FIRST]  # the server has released the second
        savepoint.rollback()
    with pytest.raises(DBAPIError):
        connection.execute(sa.insert(Customer).values(id=1, name="twice"))
    with pytest.raises(sa.exc.PendingRollbackError):
        session.commit()


@pytest.mark.databases("postgresql")
def test_an_error_in_a_savepoint_of_the_session(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with session.begin_nested() as savepoint:
        session.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(DBAPIError):
            session.execute(sa.insert(Customer).values(id=1, name="twice"))
        assert list(session.held_locks) == [FIRST]
        savepoint.rollback()
    assert list(session.held_locks) == [FIRST]
    session.commit()


@pytest.mark.databases("postgresql")
def test_an_error_in_a_savepoint_that_the_server_does_not_know(
    session: Session, elsewhere: Run
) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    connection = session.connection()
    with session.begin_nested() as savepoint:  # SQLAlchemy sets it when the session first uses it
        with pytest.raises(DBAPIError):
            connection.execute(sa.insert(Customer).values(id=1, name="twice"))
        assert not session.held_locks
        savepoint.rollback()  # undoes nothing
    with pytest.raises(sa.exc.PendingRollbackError):
        session.commit()  # the server would answer with ROLLBACK
    session.rollback()
    assert elsewhere(TOTALS) == [(30,), (5,)]


class TestLent:
    """The Connection belongs to the program."""

    @pytest.fixture
    def lent(self, engine: sa.Engine) -> Any:
        with engine.connect() as connection:
            yield connection

    @pytest.mark.parametrize("end", ["commit", "rollback", "text"])
    def test_the_lender_ends_it(
        self, lent: sa.Connection, other: Session, elsewhere: Run, end: str
    ) -> None:
        lent.begin()
        with Session(lent, join_transaction_mode="rollback_only") as session:
            order = session.get_one_entity(Order, 1, ForUpdate)
            ENDS[end](lent)
            assert not session.held_locks
            assert not finds_held()(other)
            order.total = 31
            with pytest.raises(LockLost):
                session.flush()
        assert elsewhere(TOTALS) == [(30,), (5,)]
        assert not lent.dispatch.savepoint

    def test_the_lenders_savepoint(self, lent: sa.Connection) -> None:
        lent.begin()
        savepoint = lent.begin_nested()
        with Session(lent, join_transaction_mode="rollback_only") as session:
            session.get_one_entity(Order, 1, ForUpdate)
            savepoint.rollback()
            assert not session.held_locks

    def test_the_savepoint_that_a_session_is_in(self, lent: sa.Connection) -> None:
        lent.begin()
        with Session(lent, join_transaction_mode="create_savepoint") as session:
            session.connection()
            session.get_one_entity(Order, 1, ForUpdate)
            savepoint = lent.get_nested_transaction()
            assert savepoint is not None
            savepoint.rollback()
            assert not session.held_locks

    def test_two_sessions(self, lent: sa.Connection) -> None:
        lent.begin()
        one, two = (Session(lent, join_transaction_mode="rollback_only") for _ in range(2))
        one.get_one_entity(Order, 1, ForUpdate)
        with one.begin_nested() as savepoint:
            one.get_one(Customer, 1)  # sends the SAVEPOINT
            two.get_one_entity(Order, 2, ForUpdate)
            savepoint.rollback()
        assert list(one.held_locks) == [FIRST]
        assert not two.held_locks
        one.close()
        two.close()
