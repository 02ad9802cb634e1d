"""A dirty read of one document that finds several rows is an error, as the lock of it is."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession, LockMisuse, LockOptions
from tests.sql.models import Order
from tests.sql.servers import serving


def test_a_dirty_read_of_sql_server() -> None:
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        script.handshake = {**script.handshake, "NOLOCK": [(1, 1, 30), (2, 1, 5)]}
        with pytest.raises(LockMisuse, match="has 2 rows for the key 1, such as 1, 2"):
            session.get_entity(Order, 1, LockOptions.NoLock)
    assert "NOLOCK" in script.selects[-1]
