"""A connection that was lost before a lock with a limit: SQLAlchemy's error, not the driver's."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database
from tests.support.models import Order

KILL = {
    "postgresql": "SELECT pg_terminate_backend({}, 10000)",  # returns when it is gone
    "mysql": "KILL {}",
    "mariadb": "KILL {}",
}
OWN_ID = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
    "mariadb": "SELECT CONNECTION_ID()",
}


@pytest.mark.read_committed
@pytest.mark.databases(*KILL)
@pytest.mark.parametrize("seconds", [None, 0, 0.3, 60])
def test_the_error_is_sqlalchemys_and_the_session_goes_on(
    session: LockingSession, database: Database, seconds: float | None
) -> None:
    own = session.scalar(sa.text(OWN_ID[database.name]))
    with database.observer().connect() as observer:
        observer.exec_driver_sql(KILL[database.name].format(own))
    with pytest.raises(sa.exc.DBAPIError) as caught:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=seconds)
    assert caught.value.connection_invalidated
    session.rollback()
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=seconds)
    assert order.total == 30


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("seconds", [None, 0, 0.3])
def test_nor_is_one_of_the_network_the_drivers(
    session: LockingSession, seconds: float | None
) -> None:
    """psycopg finds it while it sends the limit in front of the statement."""
    driver: Any = session.connection().connection.driver_connection
    with socket.socket(fileno=os.dup(driver.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
    with pytest.raises(sa.exc.DBAPIError) as caught:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=seconds)
    assert caught.value.connection_invalidated
    session.rollback()
    assert session.get_one_entity(Order, 1, LockOptions.ForUpdate).total == 30
