"""A ROLLBACK after the server rolled back raises error 3903, which hides no other error and costs no lock.

FreeTDS sends it. Whether the server begins the transaction that the same request asks for is not
documented, so the tests cover both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import DBAPIError

from lab.tds.engines import ENGINES
from lab.tds.server import TDSServer, said
from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockingSession,
    LockLost,
    LockOptions,
    SnapshotConflict,
)
from sa_doclock.dialects import strategy_for
from tests.sql.models import Customer, Order
from tests.sql.tds.test_drivers import assert_locks_again

pytestmark = pytest.mark.each_value

SENDS = {"freetds": ["rollback and begin"], "odbc18": []}
FAILS: Mapping[str, AbstractContextManager[object]] = {
    "freetds": pytest.raises(DBAPIError, match=r"\(3903\)"),
    "odbc18": nullcontext(),
}
either = pytest.mark.parametrize("begins", [False, True], ids=["no transaction", "begins"])


@either
@pytest.mark.parametrize(("number", "kind"), [(1205, DeadlockDetected), (3960, SnapshotConflict)])
def test_the_failure_comes_out_and_the_session_goes_on(
    session: LockingSession,
    wire: TDSServer,
    number: int,
    kind: type[DocLockError],
    *,
    begins: bool,
) -> None:
    wire.database.begins_after_3903 = begins
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(kind), session.begin():
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert_locks_again(session, wire)


@either
def test_another_session_gets_a_connection_that_locks(
    engine: Engine, wire: TDSServer, *, begins: bool
) -> None:
    wire.database.begins_after_3903 = begins
    wire.database.failures.append(("FROM shop_order", 1205))
    with LockingSession(engine) as first, pytest.raises(DeadlockDetected):
        first.get_entity(Order, 1, LockOptions.ForUpdate)
    with LockingSession(engine) as second:
        assert_locks_again(second, wire)


WAYS: Mapping[str, Callable[[LockingSession], object]] = {
    "lock": lambda session: session.get_entity(Order, 1, LockOptions.ForUpdate),
    "statement": lambda session: session.execute(update(Order).values(total=7)),
}
ENDS: Mapping[str, Callable[[LockingSession], object]] = {
    "rollback": LockingSession.rollback,
    "close": LockingSession.close,
}


@either
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_who_has_caught_it_ends_the_transaction_in_peace(
    engine: Engine,
    wire: TDSServer,
    way: Callable[[LockingSession], object],
    end: Callable[[LockingSession], object],
    *,
    begins: bool,
) -> None:
    wire.database.begins_after_3903 = begins
    with LockingSession(engine) as session:
        session.get(Customer, 1)
        wire.database.failures.append(("shop_order", 1205))
        with pytest.raises(DeadlockDetected):
            way(session)
        end(session)
        assert not session.in_transaction()
        with LockingSession(engine) as another:  # there is one connection
            assert_locks_again(another, wire)


def test_which_driver_sends_it(engine: Engine, driver: str, wire: TDSServer) -> None:
    wire.database.failures.append(("FROM shop_order", 1205))
    connection = engine.connect()
    with pytest.raises(DBAPIError, match=r"\(1205\)"):
        connection.execute(Order.__table__.select())
    wire.sent.clear()
    with FAILS[driver]:
        connection.rollback()
    assert wire.texts == SENDS[driver]
    connection.invalidate()
    connection.close()


# --------------------------------------------------------------------------------------------------
# A rollback does not hide LockLost or the server's own error, whatever ended the transaction.
#
# Tests each driver: FreeTDS sends ROLLBACK without a transaction, which is error 3903.

ForUpdate = LockOptions.ForUpdate
ENDS_NOTHING_TO_ROLL_BACK = (
    "COMMIT",
    "ROLLBACK",
    "IF @@TRANCOUNT > 0 COMMIT",
    "IF @@TRANCOUNT > 0 ROLLBACK",
)
#: Errors whose text states that they end the transaction, and errors that do not say.
NUMBERS = (245, 1205, 3609, 3616, 3958, 3960, 3961, 3966, 3998)
Ends = Callable[[LockingSession, str], object]
BY: Mapping[str, Ends] = {
    "text()": lambda session, sql: session.execute(text(sql)),
    "exec_driver_sql()": lambda session, sql: session.connection().exec_driver_sql(sql),
}
AFTER: Mapping[str, Callable[[LockingSession], object]] = {
    "rollback": LockingSession.rollback,
    "close": LockingSession.close,
    "reset": lambda session: session.reset(),
}


@pytest.fixture(params=[False, True], ids=["no transaction", "begins"])
def engine_nothing_to_roll_back(
    request: pytest.FixtureRequest, any_driver: str, wire: TDSServer
) -> Iterator[Engine]:
    """Provide an engine with one connection; 3903 begins the next transaction, or does not."""
    wire.database.begins_after_3903 = request.param
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    strategy_for(engine)
    wire.sent.clear()
    yield engine
    engine.dispose()


def _works_again(session: LockingSession, wire: TDSServer) -> None:
    """Lock again, in a transaction that exists on the server too."""
    wire.sent.clear()
    assert session.get_one_entity(Order, 1, ForUpdate).id == 1
    assert [sent.in_transaction for sent in said(wire, "UPDLOCK")] == [True]
    session.commit()


def _works_in_another(engine: Engine, wire: TDSServer) -> None:
    with LockingSession(engine) as session:  # there is one connection
        _works_again(session, wire)


def _change_after(session: LockingSession, by: str, sql: str) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    BY[by](session, sql)
    order.total = 9


@pytest.mark.parametrize("sql", ENDS_NOTHING_TO_ROLL_BACK)
@pytest.mark.parametrize("by", BY)
def test_lock_lost_comes_out_of_the_sessions_block(
    engine_nothing_to_roll_back: Engine, wire: TDSServer, by: str, sql: str
) -> None:
    with pytest.raises(LockLost), LockingSession(engine_nothing_to_roll_back) as session:  # noqa: PT012  # its end too
        _change_after(session, by, sql)
        session.save_changes()
    _works_in_another(engine_nothing_to_roll_back, wire)


@pytest.mark.parametrize("sql", ENDS_NOTHING_TO_ROLL_BACK[:2])
@pytest.mark.parametrize("by", BY)
def test_lock_lost_comes_out_of_begin(
    engine_nothing_to_roll_back: Engine, wire: TDSServer, by: str, sql: str
) -> None:
    with LockingSession(engine_nothing_to_roll_back) as session:
        with pytest.raises(LockLost), session.begin():  # COMMIT fails
            _change_after(session, by, sql)
        _works_again(session, wire)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("sql", ENDS_NOTHING_TO_ROLL_BACK[:2])
@pytest.mark.parametrize("by", BY)
def test_who_ends_the_session_ends_it_in_peace(
    engine_nothing_to_roll_back: Engine,
    wire: TDSServer,
    by: str,
    sql: str,
    after: str,
    *,
    held: bool,
) -> None:
    with LockingSession(engine_nothing_to_roll_back) as session:
        session.get_entity(Order, 1, ForUpdate if held else LockOptions.None_)
        BY[by](session, sql)
        AFTER[after](session)
    _works_in_another(engine_nothing_to_roll_back, wire)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("sql", ENDS_NOTHING_TO_ROLL_BACK[:2])
def test_an_error_of_the_program_comes_out(
    engine_nothing_to_roll_back: Engine, wire: TDSServer, sql: str, *, held: bool
) -> None:
    def act(session: LockingSession) -> None:
        with session.begin():
            session.get_entity(Order, 1, ForUpdate if held else LockOptions.None_)
            session.execute(text(sql))
            raise ZeroDivisionError

    with LockingSession(engine_nothing_to_roll_back) as session, pytest.raises(ZeroDivisionError):
        act(session)
    _works_in_another(engine_nothing_to_roll_back, wire)


def _fail(session: LockingSession, wire: TDSServer, number: int) -> None:
    wire.database.failures.append(("FROM shop_customer", number))
    session.execute(select(Customer))


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("number", NUMBERS)
def test_the_servers_own_error_comes_out(
    engine_nothing_to_roll_back: Engine, wire: TDSServer, number: int, *, held: bool
) -> None:
    with LockingSession(engine_nothing_to_roll_back) as session:
        with pytest.raises(DBAPIError) as caught, session.begin():  # noqa: PT012  # its end too
            session.get_entity(Order, 1, ForUpdate if held else LockOptions.None_)
            _fail(session, wire, number)
        assert "3903" not in str(caught.value)
        assert "BEGIN TRANSACTION" not in str(caught.value)
    _works_in_another(engine_nothing_to_roll_back, wire)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("number", NUMBERS)
def test_who_has_caught_it_ends_the_session_in_peace(
    engine_nothing_to_roll_back: Engine, wire: TDSServer, number: int, after: str, *, held: bool
) -> None:
    with LockingSession(engine_nothing_to_roll_back) as session:
        session.get_entity(Order, 1, ForUpdate if held else LockOptions.None_)
        with pytest.raises(DBAPIError):
            _fail(session, wire, number)
        AFTER[after](session)
    _works_in_another(engine_nothing_to_roll_back, wire)


def test_a_connection_that_was_lent_begins_again(
    engine_nothing_to_roll_back: Engine, wire: TDSServer
) -> None:
    with engine_nothing_to_roll_back.connect() as connection:
        with LockingSession(connection) as session:
            session.get_one_entity(Order, 1, ForUpdate)
            connection.exec_driver_sql("COMMIT")
        connection.rollback()
        with LockingSession(connection) as session:
            _works_again(session, wire)
