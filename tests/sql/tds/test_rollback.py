"""A ROLLBACK after the server has rolled back is error 3903, which hides nothing and costs nothing.

FreeTDS sends it. Whether the server begins the transaction that the same request asks for is not
documented, so both are played.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.exc import DBAPIError

from sa_doclock import DeadlockDetected, DocLockError, LockingSession, LockOptions, SnapshotConflict
from tests.sql.models import Customer, Order
from tests.sql.tds.server import TDSServer
from tests.sql.tds.test_errors import assert_locks_again

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
