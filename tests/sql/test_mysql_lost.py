"""Errors of MySQL's drivers after which the connection is lost, though SQLAlchemy does not know it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError

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


class KeyServiceError(Exception):
    """An error of the program, as a type of a column or a listener raises it."""


def test_another_error_loses_none() -> None:
    own = KeyServiceError()
    own.__cause__ = ConnectionError()
    for error, raised in (
        (ConnectorError(-1, "Unread result found"), DBAPIError),
        (own, KeyServiceError),
    ):
        with serving("mysql") as (engine, script), LockingSession(engine) as session:
            session.get_entity(Order, 1, ForUpdate)
            script.failures.append(("SELECT 2", error))
            with pytest.raises(raised):
                session.scalar(sa.text("SELECT 2"))
            assert session.held_locks
