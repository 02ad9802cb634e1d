"""SQL Server: a lock by key reads all columns of the row, so that no index that has them answers.

The server is scripted: which plan it chooses is not proved here.
"""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession, LockOptions
from tests.sql.script import Script
from tests.support.models import Order

LOCKS = (LockOptions.ForUpdate, LockOptions.ForUpdate | LockOptions.NoWait)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_deferred_column_is_read_with_the_lock(
    session: LockingSession, script: Script, lock: LockOptions
) -> None:
    session.get_entity(Order, 1, lock)
    (select,) = {sql for sql in script.statements if "UPDLOCK" in sql}
    assert "remark" in select.partition("FROM")[0]


def test_a_read_without_a_lock_leaves_it_out(session: LockingSession, script: Script) -> None:
    session.get_entity(Order, 1)
    assert not [sql for sql in script.statements if "remark" in sql]
