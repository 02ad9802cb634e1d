"""Error 3903, of a ROLLBACK after the server has rolled back by itself, hides nothing.

FreeTDS sends that ROLLBACK.  The server is scripted: this proves nothing about locks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.exc import DBAPIError

from sa_doclock import DeadlockDetected, DocLockError, LockingSession, LockOptions, SnapshotConflict
from tests.sql.models import Customer, Order
from tests.sql.native import MSSQLDatabaseException, freetds
from tests.sql.script import Script


def _lock(session: LockingSession) -> None:
    session.get_entity(Order, 1, LockOptions.ForUpdate)


def _lock_in_a_transaction_of_ours(session: LockingSession) -> None:
    with session.begin():
        _lock(session)


def _lock_after_a_plain_read(session: LockingSession) -> None:
    session.get(Customer, 1)
    try:
        _lock(session)
    except DocLockError:
        session.rollback()
        raise


def _lock_a_set(session: LockingSession) -> None:
    with session.begin():
        session.scalars(session.entity_set(Order, LockOptions.ForUpdate))


def _write(session: LockingSession) -> None:
    with session.begin():
        session.add(Customer(id=2, name="Ben"))


def _write_under_a_lock(session: LockingSession) -> None:
    with session.locked(Order, 1) as order:
        order.total = 7


def _write_by_a_statement(session: LockingSession) -> None:
    with session.begin():
        session.execute(Order.__table__.update().values(total=7))  # type: ignore[attr-defined]


#: FreeTDS's, and what pymssql raises where the login's language is another than English.
each_noise = pytest.mark.parametrize(
    "noise", [freetds(3903), MSSQLDatabaseException(3903)], ids=["freetds", "pymssql"]
)
WAYS: dict[Callable[[LockingSession], None], str] = {
    _lock: "FROM shop_order",
    _lock_in_a_transaction_of_ours: "FROM shop_order",
    _lock_after_a_plain_read: "FROM shop_order",
    _lock_a_set: "FROM shop_order",
    _write: "INSERT INTO shop_customer",
    _write_under_a_lock: "UPDATE shop_order",
    _write_by_a_statement: "UPDATE shop_order",
}


@each_noise
@pytest.mark.parametrize(("number", "kind"), [(1205, DeadlockDetected), (3960, SnapshotConflict)])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_the_failure_comes_out_and_the_session_goes_on(
    session: LockingSession,
    script: Script,
    way: Callable[[LockingSession], None],
    number: int,
    kind: type[DocLockError],
    noise: Exception,
) -> None:
    script.failures += [(WAYS[way], freetds(number)), ("(rollback)", noise)]
    with pytest.raises(DocLockError) as caught:
        way(session)
    assert type(caught.value) is kind
    session.rollback()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).total == 1


@each_noise
@pytest.mark.parametrize("end", [LockingSession.rollback, LockingSession.close])
def test_who_has_caught_the_failure_ends_the_transaction_in_peace(
    session: LockingSession,
    script: Script,
    end: Callable[[LockingSession], None],
    noise: Exception,
) -> None:
    session.get(Customer, 1)
    script.failures += [("FROM shop_order", freetds(1205)), ("(rollback)", noise)]
    with pytest.raises(DeadlockDetected):
        _lock(session)
    end(session)
    assert not session.in_transaction()
    assert script.failures == []
    _lock(session)


def test_3903_comes_out_where_it_is_the_only_failure(
    session: LockingSession, script: Script
) -> None:
    session.get(Customer, 1)
    script.failures.append(("(rollback)", freetds(3903)))
    with pytest.raises(DBAPIError, match="3903"):
        session.rollback()
