"""with_for_update() under AUTOCOMMIT locks nothing that lasts, and is refused for every class."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockNotSupported
from tests.support.databases import Database
from tests.support.models import Order


class Base(DeclarativeBase):
    pass


class Undeclared(Base):
    __tablename__ = "lk_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


class Elsewhere(Base):
    __tablename__ = "lk_customer"
    id: Mapped[int] = mapped_column(primary_key=True)


TABLE: Any = Undeclared.__table__
AUTOCOMMIT: Any = {"isolation_level": "AUTOCOMMIT"}


def _of_engine(database: Database) -> LockingSession:
    return LockingSession(database.engine(**AUTOCOMMIT))


def _of_engine_options(database: Database) -> LockingSession:
    return LockingSession(database.engine().execution_options(**AUTOCOMMIT))


def _of_lent_connection(database: Database) -> LockingSession:
    return LockingSession(database.engine().connect().execution_options(**AUTOCOMMIT))


def _of_session_connection(database: Database) -> LockingSession:
    session = LockingSession(database.engine())
    session.connection(execution_options=AUTOCOMMIT)
    return session


WAYS: dict[str, Callable[[Database], LockingSession]] = {
    "engine": _of_engine,
    "execution_options() of an engine": _of_engine_options,
    "a lent connection": _of_lent_connection,
    "session.connection()": _of_session_connection,
}

LOCKING = sa.select(Undeclared).where(Undeclared.id == 1).with_for_update()
STATEMENTS: dict[str, Callable[[LockingSession], Any]] = {
    "undeclared": lambda session: session.scalars(LOCKING).all(),
    "declared": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "get": lambda session: session.get(Undeclared, 1, with_for_update=True),
    "Query.get": lambda session: session.query(Undeclared).with_for_update().get(1),
    "table": lambda session: session.execute(sa.select(TABLE).with_for_update(read=True)).all(),
    "a column": lambda session: session.execute(
        sa.select(Undeclared.total).with_for_update()
    ).all(),
    "for key share": lambda session: session.scalars(
        sa.select(Undeclared).with_for_update(read=True, key_share=True)
    ).all(),
    "stream": lambda session: session.scalars(LOCKING, execution_options={"yield_per": 1}).all(),
    "count": lambda session: session.query(Undeclared).with_for_update().count(),
    "EXISTS": lambda session: session.scalar(sa.select(LOCKING.exists())),
    "connection": lambda session: session.connection().execute(LOCKING).all(),
    "UPDATE": lambda session: session.execute(
        sa.update(Elsewhere)
        .where(Elsewhere.id.in_(sa.select(sa.select(Undeclared.id).with_for_update().subquery())))
        .values(id=Elsewhere.id)
    ),
}


@pytest.mark.filterwarnings("ignore:The Query.get")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("run", STATEMENTS.values(), ids=STATEMENTS)
def test_it_is_refused(
    documents: Database,
    way: Callable[[Database], LockingSession],
    run: Callable[[LockingSession], Any],
) -> None:
    session = way(documents)
    lent = session.bind if isinstance(session.bind, sa.Connection) else nullcontext()
    with lent, session, pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
        run(session)


@pytest.mark.filterwarnings("ignore:The Query.get")
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("run", STATEMENTS.values(), ids=STATEMENTS)
def test_it_is_refused_where_the_program_has_set_it_in_the_driver(
    documents: Database, run: Callable[[LockingSession], Any]
) -> None:
    with LockingSession(documents.engine()) as session:
        driver: Any = session.connection().connection.dbapi_connection
        if callable(driver.autocommit):  # PyMySQL
            driver.autocommit(True)
        else:
            driver.autocommit = True
        with pytest.raises(LockNotSupported, match="AUTOCOMMIT"):
            run(session)
