"""Documents behind a pooler, and the steps of two actors with one of them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database
from tests.support.models import Base, Order, refill


@pytest.fixture(autouse=True)
def documents(database: Database) -> Database:
    """Insert the rows of tests/support/models.py."""
    database.create(Base.metadata)
    with database.observer().begin() as connection:
        refill(connection)
    return database


def add_ten(session: LockingSession) -> int:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    order.total += 10
    session.flush()
    return order.total


def total(documents: Database) -> int:
    with documents.observer().connect() as connection:
        return connection.execute(sa.select(Order.total).where(Order.id == 1)).scalar_one()


def save(session: LockingSession) -> None:
    session.save_changes()
