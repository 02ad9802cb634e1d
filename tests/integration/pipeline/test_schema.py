"""A schema_translate_map also applies to statements that travel with a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.pipeline.models import ON_POSTGRESQL, Base, Bill, fill
from tests.support.databases import Database

pytestmark = ON_POSTGRESQL

OPTIONS: dict[str, Any] = {"schema_translate_map": {None: "pl_tenant"}}
both = pytest.mark.parametrize("pipeline", [False, True])


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Make an engine of a database whose tables exist only in the tenant's schema."""
    engine = database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA IF EXISTS pl_tenant CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA pl_tenant")
        Base.metadata.drop_all(connection)
    with engine.execution_options(**OPTIONS).begin() as connection:
        Base.metadata.create_all(connection)
        fill(connection)
    return engine


def of_engine(engine: sa.Engine, pipeline: bool) -> LockingSession:
    return LockingSession(engine.execution_options(**OPTIONS), pipeline=pipeline)


def of_connection(engine: sa.Engine, pipeline: bool) -> LockingSession:
    session = LockingSession(engine, pipeline=pipeline)
    session.connection(execution_options=OPTIONS)
    return session


@both
@pytest.mark.parametrize("make", [of_engine, of_connection])
def test_the_parts_are_read_where_the_document_is(
    engine: sa.Engine, make: Callable[[sa.Engine, bool], LockingSession], pipeline: bool
) -> None:
    with make(engine, pipeline) as session:
        bill = session.get_document(Bill, 1, LockOptions.ForUpdate, lock_timeout=29.5)
        assert bill is not None
        assert [item.value for item in bill.items] == [10, 20]
        bill.total = 31
        bill.items[0].value = 11
        session.save_changes()
    with make(engine, pipeline) as session:
        assert session.get_one(Bill, 1).total == 31
