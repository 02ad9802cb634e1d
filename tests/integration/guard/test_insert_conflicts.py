"""INSERT statements that may find the row there already."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Customer, Line, Order
from tests.integration.guard.steps import hold, refused

LINES: Any = Line.__table__


def overwriting(session: LockingSession, entity: Any, what: dict[str, Any], **row: Any) -> Any:
    name = session.get_bind().dialect.name
    if name in ("mysql", "mariadb"):
        return mysql.insert(entity).values(**row, **what).on_duplicate_key_update(**what)
    module: Any = postgresql if name == "postgresql" else sqlite
    statement = module.insert(entity).values(**row, **what)
    return statement.on_conflict_do_update(index_elements=["id"], set_=what)


def doing_nothing(session: LockingSession, entity: Any, **values: Any) -> Any:
    name = session.get_bind().dialect.name
    if name in ("mysql", "mariadb"):
        return sa.insert(entity).prefix_with("IGNORE").values(**values)
    module: Any = postgresql if name == "postgresql" else sqlite
    return module.insert(entity).values(**values).on_conflict_do_nothing()


def test_an_insert_that_may_overwrite_is_refused(session: LockingSession) -> None:
    with refused(session, Order, 1, "inserted"):
        session.execute(overwriting(session, Order, {"total": 31}, id=1))
    with refused(session, Order, 1, "inserted"):  # by the row that is there
        session.execute(overwriting(session, LINES, {"value": 31}, id=1, order_no=1))


@pytest.mark.not_databases("mssql")  # has no such INSERT
def test_a_row_that_was_there_already_is_no_new_document(session: LockingSession) -> None:
    session.execute(doing_nothing(session, Order, id=1, total=7))
    order = session.get_one(Order, 1)
    assert order.total == 30
    order.total = 31
    with refused(session, Order, 1, "'total'"):
        session.flush()


@pytest.mark.not_databases("mssql")  # has no such INSERT
def test_a_part_that_may_be_there_already_is_added_under_the_lock(session: LockingSession) -> None:
    with refused(session, Order, 1):
        session.execute(doing_nothing(session, LINES, id=9, order_no=1, value=0))
    held = hold(session, Order, 1)
    session.execute(doing_nothing(session, LINES, id=9, order_no=1, value=0))
    session.commit()
    assert held


@pytest.mark.databases("sqlite", "sqlite-journal")
def test_insert_or_replace_may_overwrite(session: LockingSession) -> None:
    statement = sa.insert(Customer).prefix_with("OR REPLACE").values(id=1, name="Anna")
    session.execute(statement)  # is not declared
    with pytest.raises(UnlockedWrite):
        session.execute(sa.insert(Order).prefix_with("OR REPLACE").values(id=1, total=31))
