"""SQL Server's numbers become our classes, in every driver's wrapping, and lead to the rollback.

The server is scripted: these tests do not prove that it raises the numbers when it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError

from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
)
from sa_doclock.dialects.mssql import SQLServerLocks
from sa_doclock.dialects.mssql_errors import TEXTS as OWN_TEXTS
from tests.sql.driver import Script
from tests.sql.models import Customer, Order
from tests.sql.native import (
    FORMS,
    TEXTS,
    MSSQLDatabaseException,
    freetds,
    mssql_python,
    odbc18,
    pymssql,
)
from tests.sql.servers import Error

pytestmark = pytest.mark.each_value

FAILURES: dict[int, type[LockFailed]] = {
    1222: LockNotAvailable,
    1205: DeadlockDetected,
    3958: SnapshotConflict,
    3960: SnapshotConflict,
}
REFUSALS: dict[int, type[DocLockError]] = {
    **dict.fromkeys((3952, 3953, 3954, 3956), LockNotSupported),
    3951: WrongIsolation,
}
HEADER = "FROM shop_order"
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
each_failure = pytest.mark.parametrize(("number", "kind"), FAILURES.items(), ids=str)


@each_form
@each_failure
def test_a_lock_that_failed_is_of_its_class(
    session: LockingSession,
    script: Script,
    form: Callable[[int], Error],
    number: int,
    kind: type[LockFailed],
) -> None:
    failure = form(number)
    script.failures.append((HEADER, failure))
    with pytest.raises(LockFailed) as caught:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    error = caught.value
    assert type(error) is kind
    assert error.retryable
    assert error.orig is failure
    assert isinstance(error, OperationalError)
    assert (error.entity, error.ident, error.lock) == (Order, 1, LockOptions.ForUpdate)
    assert str(error).startswith("Order 1 FOR UPDATE on mssql: ")


@each_form
@pytest.mark.parametrize(("number", "kind"), REFUSALS.items(), ids=str)
def test_a_snapshot_that_was_refused_is_of_its_class(
    session: LockingSession,
    script: Script,
    form: Callable[[int], Error],
    number: int,
    kind: type[DocLockError],
) -> None:
    script.failures.append((HEADER, form(number)))
    with pytest.raises(DocLockError) as caught:
        session.get_entity(Order, 1, LockOptions.SharedRead)
    assert type(caught.value) is kind
    assert not caught.value.retryable


@each_form
@each_failure
def test_a_set_that_failed_is_of_its_class(
    session: LockingSession,
    script: Script,
    form: Callable[[int], Error],
    number: int,
    kind: type[LockFailed],
) -> None:
    script.failures.append((HEADER, form(number)))
    with pytest.raises(kind, match="Order rows FOR UPDATE on mssql"):
        session.scalars(session.entity_set(Order, LockOptions.ForUpdate))


@each_form
@each_failure
def test_a_flush_that_failed_is_of_its_class(
    session: LockingSession,
    script: Script,
    form: Callable[[int], Error],
    number: int,
    kind: type[LockFailed],
) -> None:
    script.failures.append(("UPDATE shop_order", form(number)))
    # The unavailable row is unknown; it is not the row that the session holds.
    what = "the transaction" if kind is LockNotAvailable else "Order 1"
    with pytest.raises(kind, match=f"{what} on mssql"), session.locked(Order, 1) as order:
        order.total = 7
    assert not session.in_transaction()


def known_numbers() -> set[int]:
    """Return every number with a meaning in the strategy."""
    return {int(number) for number in SQLServerLocks.errors.codes}


@each_form
def test_each_known_number_is_found_in_what_each_driver_raises(
    form: Callable[[int], Error],
) -> None:
    dialect: Any = MSDialect_pyodbc
    strategy = SQLServerLocks(dialect())
    found = {
        number: strategy.errors.native_code(form(number)) for number in sorted(known_numbers())
    }
    errors = strategy.errors
    assert {number: errors[code] for number, code in found.items()} == {
        number: errors[number] for number in found
    }


def test_each_text_is_of_a_known_number() -> None:
    assert set(OWN_TEXTS.values()) <= known_numbers()


@pytest.mark.parametrize("form", [odbc18, pymssql, mssql_python])
def test_a_key_that_cannot_be_sought_says_why(
    session: LockingSession, script: Script, form: Callable[[int], Error]
) -> None:
    script.failures.append((HEADER, form(8622)))
    with pytest.raises(LockNotSupported, match="Order 1 FOR UPDATE") as caught:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    for cause in ("the mapped type is not the column's", "a view", "columnstore", "no index"):
        assert cause in str(caught.value)


@pytest.mark.parametrize("number", REFUSALS)
def test_a_refusal_is_sqlalchemys_own_error_where_no_lock_was_asked_for(
    session: LockingSession, script: Script, number: int
) -> None:
    script.failures.append(("FROM shop_customer", odbc18(number)))
    with pytest.raises(DBAPIError) as caught:
        session.get(Customer, 1)
    assert not isinstance(caught.value, DocLockError)


def test_a_number_in_the_words_of_another_error_is_not_the_errors_number(
    session: LockingSession, script: Script
) -> None:
    assert "((1205))" in TEXTS[2627]
    script.failures.append(("INSERT INTO shop_customer", odbc18(2627)))
    session.add(Customer(id=1, name="Ann"))
    with pytest.raises(DBAPIError) as caught:
        session.flush()
    assert not isinstance(caught.value, DocLockError)


@pytest.mark.parametrize("number", [1205, 3960])
def test_nothing_but_a_rollback_follows_when_the_transaction_is_gone(
    session: LockingSession, script: Script, number: int
) -> None:
    session.get(Customer, 1)
    script.failures.append((HEADER, odbc18(number)))
    with pytest.raises(FAILURES[number]):
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    script.sent.clear()
    with pytest.raises(PendingRollbackError):
        session.get_one(Customer, 2)
    with pytest.raises(PendingRollbackError):
        session.commit()
    assert script.sent == []
    session.rollback()
    assert session.get(Order, 1) is not None


# --------------------------------------------------------------------------------------------------
# Error 3903, from a ROLLBACK after the server rolled back by itself, hides nothing.
#
# FreeTDS sends that ROLLBACK.  The server is scripted: this does not prove anything about locks.


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


#: FreeTDS's, and the error that pymssql raises if the login's language is not English.
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
