"""The session notices an error that ends the transaction, even if the driver then begins the next transaction.

Microsoft defines which errors do so: "SET XACT_ABORT", and the texts of the errors.  The model
simulates it: after such an error, CURRENT_TRANSACTION_ID() returns another id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from lab.tds.model import Session
from lab.tds.server import TDSServer, said
from sa_doclock import (
    LockingSession,
    LockLost,
    LockMisuse,
    LockNotAvailable,
    LockOptions,
    SnapshotConflict,
)
from tests.sql.models import Customer, Order
from tests.sql.tds.test_drivers import assert_locks_again

pytestmark = pytest.mark.each_value


def _change(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 9
    session.flush()


def _set_savepoint(session: LockingSession) -> None:
    with session.begin_nested():
        session.connection()


def _lock_and_update(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    session.execute(update(Customer).values(name="Bob"))


ENDS = (245, 3609, 3616, 3998)
OTHERS: Mapping[str, Callable[[LockingSession], object]] = {
    "statement": lambda session: session.execute(select(Order.total)),
    "lock": lambda session: session.get_entity(Order, 2, LockOptions.ForUpdate),
    "named lock": lambda session: session.lock_key("a"),
    "flush": _change,
    "commit": lambda session: session.commit(),
    "savepoint": _set_savepoint,
}
either = pytest.mark.parametrize("begins", [False, True], ids=["no transaction", "begins"])
asks = "CURRENT_TRANSACTION_ID()"


@pytest.fixture
def aborting(engine: Engine) -> Engine:
    """Set XACT_ABORT ON on every connection of the engine, as some programs do."""

    @event.listens_for(engine, "begin")
    def _set(connection: Connection) -> None:
        connection.exec_driver_sql("SET XACT_ABORT ON")

    return engine


def fails(session: LockingSession, wire: TDSServer, number: int) -> None:
    """Make a statement of the program fail; the program catches the error and continues."""
    wire.database.failures.append(("FROM shop_customer", number))
    with pytest.raises(DBAPIError, match=rf"\({number}\)"):
        session.execute(select(Customer))


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("number", ENDS)
def test_everything_is_refused_until_rollback(
    session: LockingSession,
    wire: TDSServer,
    number: int,
    other: Callable[[LockingSession], object],
) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    fails(session, wire, number)
    wire.sent.clear()
    with pytest.raises(PendingRollbackError, match=r"has ended this transaction at the server"):
        other(session)
    assert said(wire, "shop_order") == []
    assert said(wire, "applock") == []
    assert not [sent for sent in wire.sent if sent.how.startswith("commit")]
    assert_locks_again(session, wire)


def test_so_it_is_after_with_for_update(session: LockingSession, wire: TDSServer) -> None:
    session.get_one(Order, 1, with_for_update=True)
    fails(session, wire, ENDS[0])
    assert not session.held_locks
    with pytest.raises(PendingRollbackError, match=r"has ended this transaction at the server"):
        session.commit()


@pytest.mark.parametrize("number", [*ENDS, 2627])
def test_it_is_asked_of_the_server_what_is_held(
    session: LockingSession, wire: TDSServer, number: int
) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    session.lock_key("a")
    fails(session, wire, number)
    assert bool(session.held_locks) is (number == 2627)


def test_an_error_of_the_statement_alone_changes_nothing(
    session: LockingSession, wire: TDSServer
) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    fails(session, wire, 2627)
    order.total = 9
    session.save_changes()
    assert len(said(wire, asks)) == 2  # at the first lock, and once after the error
    assert len(said(wire, "UPDATE shop_order")) == 1


def test_xact_abort_makes_every_error_one_of_them(aborting: Engine, wire: TDSServer) -> None:
    with LockingSession(aborting) as session:
        order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        fails(session, wire, 2627)
        order.total = 9
        with pytest.raises(PendingRollbackError):
            session.save_changes()
        assert said(wire, "UPDATE shop_order") == []


def test_also_a_lock_that_is_not_available(aborting: Engine, wire: TDSServer) -> None:
    with LockingSession(aborting) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        wire.database.failures.append(("FROM shop_order", 1222))
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 2, LockOptions.ForUpdate | LockOptions.NoWait)
        assert session.held_locks == {}
        assert_locks_again(session, wire)


def test_a_savepoint_is_gone_too(session: LockingSession, wire: TDSServer) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    with pytest.raises(DBAPIError, match="245"), session.begin_nested():
        fails(session, wire, 245)
    with pytest.raises(PendingRollbackError):
        session.execute(select(Order.total))
    assert_locks_again(session, wire)


def test_where_it_is_there_the_savepoint_undoes_the_error(
    session: LockingSession, wire: TDSServer
) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    wire.database.failures.append(("INSERT INTO shop_customer", 2627))
    with pytest.raises(DBAPIError, match="2627"), session.begin_nested():
        session.execute(insert(Customer).values(id=5, name="Ann"))
    assert session.held_locks
    session.save_changes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [3958, 3961, 3966])
def test_a_snapshot_that_was_given_up(
    session: LockingSession, wire: TDSServer, number: int
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(SnapshotConflict) as caught:
        session.get_entity(Order, 1, LockOptions.SnapshotRead)
    assert caught.value.retryable
    assert_locks_again(session, wire)


@either
@pytest.mark.parametrize("end", [LockingSession.rollback, LockingSession.close])
def test_who_has_caught_it_ends_the_transaction_in_peace(
    engine: Engine,
    wire: TDSServer,
    end: Callable[[LockingSession], None],
    *,
    begins: bool,
) -> None:
    wire.database.begins_after_3903 = begins
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        fails(session, wire, 245)
        end(session)
        with LockingSession(engine) as another:  # there is one connection
            assert_locks_again(another, wire)


@either
def test_the_error_is_what_comes_out_of_a_block(
    session: LockingSession, wire: TDSServer, *, begins: bool
) -> None:
    wire.database.begins_after_3903 = begins
    wire.database.failures.append(("UPDATE shop_customer", 245))
    with pytest.raises(DBAPIError, match="245"), session.begin():
        _lock_and_update(session)
    assert_locks_again(session, wire)


def test_without_a_lock_nothing_is_asked(session: LockingSession, wire: TDSServer) -> None:
    session.execute(select(Order.total))
    fails(session, wire, 2627)
    session.commit()
    assert said(wire, asks) == []


def test_the_driver_begins_anew_by_itself(engine: Engine, wire: TDSServer) -> None:
    """The model's rule: a program without this library loses its transaction unnoticed."""
    with engine.connect() as connection:
        before = connection.exec_driver_sql(f"SELECT {asks}").scalar_one()
        wire.database.failures.append(("FROM shop_customer", 245))
        with pytest.raises(DBAPIError, match=r"\(245\)"):
            connection.execute(select(Customer.__table__))
        after = connection.exec_driver_sql(f"SELECT {asks}").scalar_one()
        assert after != before
        assert isinstance(wire.sessions[-1], Session)
        connection.invalidate()


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
def test_a_lock_after_a_commit_of_the_programs_own_is_that_transactions(
    session: LockingSession, wire: TDSServer
) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    session.connection().commit()
    assert session.held_locks == {}
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    fails(session, wire, 2627)
    assert session.held_locks == {(Order, (1,)): LockOptions.ForUpdate}


# --------------------------------------------------------------------------------------------------
# COMMIT and ROLLBACK as text give up the locks: the session checks which transaction it is in.
#
# CURRENT_TRANSACTION_ID() needs no privilege.  The session asks once, before the next flush,
# lock or commit; then it sends nothing that would be saved without the lock.

ForUpdate = LockOptions.ForUpdate
by_text = pytest.mark.parametrize(
    "sql", ["COMMIT; BEGIN TRANSACTION", "ROLLBACK; BEGIN TRANSACTION"]
)
QUESTION = "CURRENT_TRANSACTION_ID"


@by_text
def test_nothing_is_saved(session: LockingSession, wire: TDSServer, sql: str) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text(sql))
    order.total = 9
    wire.sent.clear()
    with pytest.raises(LockLost):
        session.commit()
    assert said(wire, "UPDATE shop_order") == []
    assert len(said(wire, QUESTION)) == 1


@by_text
def test_the_lock_is_listed_no_more(session: LockingSession, sql: str) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text(sql))
    assert not session.held_locks


def test_what_leaves_the_transaction_alone_loses_nothing(
    session: LockingSession, wire: TDSServer
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text("SELECT 1"))
    order.total = 9
    session.commit()
    assert len(said(wire, "UPDATE shop_order")) == 1


def test_without_text_nothing_is_asked(session: LockingSession, wire: TDSServer) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    wire.sent.clear()
    session.get_one(Customer, 1)
    order.total = 9
    session.commit()
    assert said(wire, QUESTION) == []


def test_another_database_is_noticed_and_the_first_one_back_is_right(
    session: LockingSession, wire: TDSServer
) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    session.execute(text("USE other"))
    order.total = 9
    for _ in range(2):
        with pytest.raises(LockMisuse, match=r"'other\.dbo', and was 'shop\.dbo'"):
            session.flush()
    with pytest.raises(LockMisuse):
        session.get_entity(Order, 2, ForUpdate)
    assert said(wire, "UPDATE shop_order") == []
    with session.no_autoflush:
        session.execute(text("USE shop"))
    session.commit()
    assert len(said(wire, "UPDATE shop_order")) == 1
