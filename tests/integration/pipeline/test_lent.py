"""A Connection that the program has given to the session, in whatever way, commits by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from sa_doclock import LockingSession, LockOptions
from tests.integration.pipeline.models import Note
from tests.integration.pipeline.only import ON_POSTGRESQL

pytestmark = ON_POSTGRESQL

NUMBER = sa.select(Note.number).where(Note.id == 1)


def by_bind(lent: sa.Connection) -> LockingSession:
    return LockingSession(lent, pipeline=True)


def by_binds(lent: sa.Connection) -> LockingSession:
    return LockingSession(binds={Note: lent}, pipeline=True)


def by_bind_mapper(lent: sa.Connection) -> LockingSession:
    session = LockingSession(lent.engine, pipeline=True)
    session.bind_mapper(Note, lent)
    return session


def by_bind_table(lent: sa.Connection) -> LockingSession:
    session = LockingSession(pipeline=True)
    session.bind_table(Note.__table__, lent)  # type: ignore[arg-type]
    return session


def by_get_bind(lent: sa.Connection) -> LockingSession:
    class Routing(LockingSession):
        def get_bind(self, *_: Any, **__: Any) -> sa.Connection:
            return lent

    return Routing(pipeline=True)


def by_an_argument(lent: sa.Connection) -> LockingSession:
    session = LockingSession(lent.engine, pipeline=True)
    session.connection(bind_arguments={"bind": lent})
    return session


WAYS = [by_bind, by_binds, by_bind_mapper, by_bind_table, by_get_bind, by_an_argument]


def as_the_driver_made_it(connection: sa.Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.cursor_factory.__module__ == "psycopg")


@pytest.mark.parametrize("in_savepoint", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_waits_on_it(
    engine: sa.Engine,
    elsewhere: sa.Engine,
    way: Callable[[sa.Connection], LockingSession],
    in_savepoint: bool,
) -> None:
    with engine.connect() as lent:
        transaction = lent.begin()
        with way(lent) as session:
            if in_savepoint:
                session.begin_nested()
            session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
            session.commit()
            assert as_the_driver_made_it(lent)
            assert transaction.is_active
            assert lent.scalar(NUMBER) == 50
        transaction.rollback()
    with elsewhere.connect() as connection:
        assert connection.scalar(NUMBER) == 1


@pytest.mark.parametrize("way", WAYS)
def test_who_lent_it_gets_the_counts_of_his_own_writes(
    engine: sa.Engine, way: Callable[[sa.Connection], LockingSession]
) -> None:
    with engine.connect() as lent, lent.begin():
        with way(lent) as session:
            session.get_one_entity(Note, 1, LockOptions.ForUpdate).number = 50
            session.commit()
        with Session(lent, join_transaction_mode="create_savepoint") as plain:
            note = plain.get_one(Note, 2)
            lent.execute(sa.delete(Note).where(Note.id == 2))
            note.number = 60
            with pytest.raises(StaleDataError):
                plain.flush()
