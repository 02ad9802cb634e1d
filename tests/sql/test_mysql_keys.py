"""GET_LOCK, which outlives its transaction: what is released, and when it is known.

The server is scripted: that it holds the lock is proved in tests/integration/named_locks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects.mysql import MySQLLocks
from tests.sql.models import Customer
from tests.sql.script import Script
from tests.sql.servers import OperationalError, serving

RELEASE = "DO RELEASE_LOCK('shop.user:42')"


@pytest.fixture(params=["mysql", "mariadb"])
def scripted(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Script]]:
    with serving(request.param) as served:
        yield served


def answer(script: Script, value: object) -> None:
    script.handshake = {**script.handshake, "GET_LOCK": value}


@pytest.mark.parametrize("number", [3024, 1317, 2013])
def test_an_answer_that_has_not_come_may_have_been_a_grant(
    session: LockingSession, script: Script, number: int
) -> None:
    script.failures.append(("GET_LOCK", OperationalError(number, "interrupted")))
    with pytest.raises(DBAPIError):
        session.lock_key("user:42")
    assert (RELEASE in script.sent) is (number != 2013)  # the connection is lost


@pytest.mark.parametrize("value", [0, None])
def test_refused_by_value(session: LockingSession, script: Script, value: object) -> None:
    answer(script, value)
    with pytest.raises(LockNotAvailable, match="named lock 'user:42' FOR UPDATE on m") as caught:
        session.lock_key("user:42")
    assert caught.value.orig is None
    assert not session.in_transaction()


def released(database: str, key: str) -> str:
    """Return what releases this key in this database, which tells the name of the lock."""
    with serving("mysql") as (engine, script), engine.connect() as connection:
        engine.dialect.default_schema_name = database
        MySQLLocks.named_locks.take(connection, key, LockOptions.ForUpdate, None)
    return next(sql for sql in script.sent if "RELEASE_LOCK" in sql)


def test_no_key_has_the_name_of_another_in_another_database() -> None:
    assert released("shop", "eu.user:42") == "DO RELEASE_LOCK('shop.eu.user:42')"
    others = {("shop", "eu.user:42"), ("shop.eu", "user:42"), ("shop%2Eeu", "user:42")}
    assert len({released(*one) for one in others}) == 3


def test_each_grant_is_released_once(session: LockingSession, script: Script) -> None:
    for _ in range(2):
        savepoint = session.begin_nested()
        session.lock_key("user:42")
        savepoint.rollback()
    session.rollback()
    session.get(Customer, 1)
    session.commit()
    assert len([sql for sql in script.sent if "GET_LOCK" in sql]) == 2
    assert script.sent.count(RELEASE) == 2


def test_a_deadlock_of_names_is_one(session: LockingSession, script: Script) -> None:
    number = 1213 if session.get_bind().dialect.is_mariadb else 3058  # type: ignore[attr-defined]
    script.failures.append(("GET_LOCK", OperationalError(number, "deadlock")))
    with pytest.raises(DeadlockDetected, match="named lock 'user:42' FOR UPDATE on m"):
        session.lock_key("user:42")
    assert script.sent[-6:].count("(rollback)") >= 1
