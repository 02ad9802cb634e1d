"""An optimizer hint of the program on MySQL leaves the lock timeout in force."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, with_lock
from tests.support.models import Order

ForUpdate = LockOptions.ForUpdate
# ER_QUERY_TIMEOUT, or ER_LOCK_NOWAIT of the try after it; innodb_lock_wait_timeout would be 1205.
_BY_OUR_LIMIT = {3024, 3572}


@pytest.mark.databases("mysql")
@pytest.mark.parametrize(
    "prefix", ["/*+ NO_ICP(lk_order) */", "SQL_NO_CACHE", "/*+ MAX_EXECUTION_TIME(60000) */"]
)
def test_a_set_with_hints_waits_no_longer(
    session: LockingSession, other: LockingSession, prefix: str
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.connection().exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 8")
    session.rollback()
    statement = session.entity_set(Order, ForUpdate, lock_timeout=0.3).prefix_with(prefix)
    with pytest.raises(LockNotAvailable) as caught:
        session.scalars(statement)
    assert caught.value.orig is not None
    assert caught.value.orig.args[0] in _BY_OUR_LIMIT
    plain = with_lock(select(Order).prefix_with(prefix), ForUpdate)
    other.rollback()
    assert len(session.scalars(plain).all()) == 2
