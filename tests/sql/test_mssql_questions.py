"""SQL Server: the first lock of an engine on a Connection that was lent, over each driver's form.

The server is scripted.  On the wire: tests/sql/tds/test_questions.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, update

from sa_doclock import LockingSession, LockOptions
from tests.sql.models import Customer, Order
from tests.sql.script import Script
from tests.sql.servers import pymssql, pyodbc

each_driver = pytest.mark.parametrize("connect", [pyodbc, pymssql])


@each_driver
@pytest.mark.parametrize("lock_timeout", [None, 0.3])
def test_it_is_saved_and_released(
    connect: Callable[[Script], Engine], lock_timeout: float | None
) -> None:
    script = Script()
    engine = connect(script)
    with engine.connect() as lent, LockingSession(lent) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=lock_timeout)
        session.execute(update(Customer).values(name="Zoe"))
        session.save_changes()
        assert not lent.in_transaction()
        written = next(n for n, sql in enumerate(script.sent) if sql.startswith("UPDATE"))
        assert script.sent[written + 1] == "(commit)"
    engine.dispose()


@each_driver
def test_the_lender_ends_its_own_transaction(connect: Callable[[Script], Engine]) -> None:
    script = Script()
    engine = connect(script)
    with engine.connect() as lent, lent.begin(), LockingSession(lent) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        script.sent.clear()
        session.save_changes()
        assert script.sent == []
        assert lent.in_transaction()
    engine.dispose()
