"""Parts that cannot be read: an error of their own SELECT, not of the lock that they came with."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects.postgresql.pipelined_lock import PipelinedLock
from tests.integration.pipeline.models import Bill
from tests.integration.pipeline.only import ON_POSTGRESQL
from tests.support.databases import Database

pytestmark = ON_POSTGRESQL

ForUpdate = LockOptions.ForUpdate
both = pytest.mark.parametrize("pipeline", [False, True])


@both
def test_a_table_that_is_not_there(bills: Database, pipeline: bool) -> None:
    engine = bills.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE pl_item")
    with LockingSession(engine, pipeline=pipeline) as session:
        with pytest.raises(ProgrammingError, match="pl_item") as caught:
            session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5)
        assert "FROM pl_item" in str(caught.value.statement)
        session.rollback()
        assert session.get_one_entity(Bill, 1, ForUpdate).total == 30


@both
def test_a_table_that_is_locked_too_long(bills: Database, pipeline: bool) -> None:
    engine = bills.engine()
    with bills.engine().begin() as other:
        other.exec_driver_sql("LOCK TABLE pl_item IN ACCESS EXCLUSIVE MODE")
        with LockingSession(engine, pipeline=pipeline) as session:
            session.execute(sa.text("SET LOCAL statement_timeout = 300"))
            with pytest.raises(OperationalError, match="statement timeout") as caught:
                session.get_document(Bill, 1, ForUpdate, lock_timeout=29.5)
            assert "FROM pl_item" in str(caught.value.statement)


def test_where_nobody_asks_for_them(bills: Database) -> None:
    engine = bills.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE pl_item")
    with LockingSession(engine, pipeline=True) as session:
        with pytest.raises(ProgrammingError, match="pl_item"):
            session.get_document(Bill, 99, ForUpdate)
        session.rollback()
        assert session.get_one_entity(Bill, 1, ForUpdate).total == 30


def test_the_lock_that_is_lost_with_a_read_nobody_asks_for_is_not_passed_over(
    bills: Database,
) -> None:
    nowhere: sa.Select[Any] = sa.select(sa.column("id")).select_from(sa.table("pl_nowhere"))
    lock = sa.select(Bill.id).where(Bill.id == 1).with_for_update()
    with bills.engine().connect() as connection:
        travels = PipelinedLock(connection, None, lambda: [(nowhere, {})])
        with pytest.raises(ProgrammingError, match="pl_nowhere"), travels:
            assert connection.scalars(lock).all() == [1]
        connection.rollback()
        assert connection.scalars(lock).all() == [1]
