"""A connection that was lost before a lock with a limit: SQLAlchemy's error, not the driver's."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.databases import Database
from tests.models import Order

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
