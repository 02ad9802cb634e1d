"""mysql-connector, whose error of a lost connection has no number, and a text that SQLAlchemy does not know."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from sa_doclock import LockingSession, LockOptions
from tests.sql.models import Order
from tests.sql.servers import OperationalError, serving


class ConnectorError(OperationalError):
    """The error in the shape of this driver."""

    errno = -1


@pytest.mark.parametrize("product", ["mysql", "mariadb"])
@pytest.mark.parametrize("ending", ["", "."], ids=["newer", "8.4"])
def test_a_lost_connection_has_lost_its_locks(product: str, ending: str) -> None:
    lost = ConnectorError(f"MySQL Connection not available{ending}")
    with serving(product) as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        script.failures.append(("SELECT 2", lost))
        with pytest.raises(DBAPIError):
            session.scalar(text("SELECT 2"))
        assert not session.held_locks
        with pytest.raises(PendingRollbackError):
            session.get_entity(Order, 1, LockOptions.ForUpdate)


def test_another_error_without_a_number_loses_none() -> None:
    with serving("mysql") as (engine, script), LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        script.failures.append(("SELECT 2", ConnectorError("Unread result found")))
        with pytest.raises(DBAPIError):
            session.scalar(text("SELECT 2"))
        assert session.held_locks
