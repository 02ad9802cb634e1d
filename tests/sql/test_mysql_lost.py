"""Errors of MySQL's drivers after which the connection is lost, though SQLAlchemy does not know it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError, StatementError

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.sql.models import Order
from tests.sql.servers import Error, InternalError, OperationalError, serving

ForUpdate = LockOptions.ForUpdate
OWN = {"mysql": (3169, 4031), "mariadb": (1927,)}


class ConnectorError(OperationalError):
    """An error in the shape of mysql-connector's."""

    def __init__(self, errno: int, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.errno, self.__cause__ = errno, cause


def lost(product: str) -> Iterator[Error]:
    # mysql-connector has no number for it, and SQLAlchemy knows the text with a full stop alone.
    yield ConnectorError(-1, "MySQL Connection not available")
    yield ConnectorError(-1, "MySQL Connection not available.")
    # Nor does its connection end with a read timeout, as the text of its error has it.
    yield ConnectorError(3024, "The Read Operation timed out", TimeoutError("timed out"))
    yield InternalError("Packet sequence number wrong - got 80 expected 1")
    for number in (1053, 1153, *OWN[product]):
        yield ConnectorError(number, "of the server")
        yield OperationalError(number, "of the server")


@pytest.mark.parametrize("product", OWN)
def test_it_has_lost_its_locks(product: str) -> None:
    with serving(product) as (engine, script), LockingSession(engine) as session:
        for error in lost(product):
            session.get_entity(Order, 1, ForUpdate)
            driver = session.connection().connection.driver_connection
            script.failures.append(("SELECT 2", error))
            with pytest.raises(LockLost) as caught:
                session.scalar(sa.text("SELECT 2"))
            assert caught.value.orig is error
            assert not session.held_locks
            with pytest.raises(PendingRollbackError):
                session.get_entity(Order, 1, ForUpdate)
            session.rollback()
            assert session.connection().connection.driver_connection is not driver
            session.rollback()


def test_who_asks_whether_a_transaction_has_ended_is_told() -> None:
    with serving("mysql") as (engine, script), LockingSession(engine) as session:
        for error in lost("mysql"):
            session.get_entity(Order, 1, ForUpdate)
            session.execute(sa.text("CALL a_procedure()"))
            script.failures.append(("RELEASE SAVEPOINT sa_doclock_mark", error))
            assert len(session.held_locks) <= 1  # no error of the driver comes out
            script.failures.append(("SELECT 2", error))
            with pytest.raises((LockLost, PendingRollbackError)):
                session.scalar(sa.text("SELECT 2"))
            assert not session.held_locks
            session.rollback()
            script.failures.clear()


class Secret(sa.TypeDecorator[str]):
    """A type of the program, whose service cannot be reached."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: object, dialect: object) -> str:
        """Raise an error that the socket of the program has caused."""
        raise RuntimeError from ConnectionError()


def test_another_error_loses_none() -> None:
    with serving("mysql") as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, ForUpdate)
        script.failures.append(("SELECT 2", ConnectorError(-1, "Unread result found")))
        with pytest.raises(DBAPIError):
            session.scalar(sa.text("SELECT 2"))
        assert session.held_locks
        with pytest.raises(StatementError) as caught:
            session.scalar(sa.select(sa.literal("a", Secret())))
        assert isinstance(caught.value.orig, RuntimeError)
        assert session.held_locks
