"""The private names of sessions and pools: each test fails when SQLAlchemy has the name no more."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_doclock.sqlalchemy_internals import closes_connection, guard_finalizers


def test_a_session_closes_what_it_has_taken_from_the_pool(engine: Engine) -> None:
    with Session(engine) as session, session.begin() as transaction:
        assert closes_connection(transaction, session.connection())
        nested = session.begin_nested()
        assert closes_connection(nested, session.connection())


def test_and_not_what_it_was_lent(engine: Engine) -> None:
    with engine.connect() as lent, Session(lent) as session, session.begin() as transaction:
        assert not closes_connection(transaction, session.connection())
        nested = session.begin_nested()
        assert not closes_connection(nested, session.connection())


def test_nor_a_connection_of_another(engine: Engine) -> None:
    with Session(engine) as session, session.begin() as transaction, engine.connect() as other:
        session.connection()
        assert not closes_connection(transaction, other)


class Interrupted(BaseException):
    """Stands for Ctrl-C, which pytest would take for its own."""


@pytest.mark.parametrize("error", [OSError, Interrupted])
def test_a_level_that_cannot_be_set_back_closes_the_connection(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(_connection: object) -> None:
        raise error

    pool = engine.pool
    with monkeypatch.context() as patched:
        patched.setattr(engine.dialect, "reset_isolation_level", fail)
        connection = engine.connect().execution_options(isolation_level="READ UNCOMMITTED")
        driver = connection.connection.driver_connection
        guard_finalizers(connection.connection._connection_record)
        if error is Interrupted:
            with pytest.raises(Interrupted):
                connection.close()
        else:
            connection.close()
    assert pool.status().endswith("Current Checked out connections: 0")
    with engine.connect() as another:
        assert another.connection.driver_connection is not driver


def test_a_level_that_can_be_set_back_keeps_the_connection(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="READ UNCOMMITTED") as connection:
        driver = connection.connection.driver_connection
        guard_finalizers(connection.connection._connection_record)
    with engine.connect() as another:
        assert another.connection.driver_connection is driver
        assert another.exec_driver_sql("PRAGMA read_uncommitted").scalar() == 0
