"""A class that is mapped on a view of SQLite is locked, also in a transaction that has begun."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.support.databases import Database

pytestmark = pytest.mark.databases("sqlite", "sqlite-journal")
FOR_UPDATE = LockOptions.ForUpdate


class Base(DeclarativeBase):
    """The tables of this file."""


class Account(Base):
    """A table."""

    __tablename__ = "vw_account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class OpenAccount(Base):
    """A view on it."""

    __tablename__ = "vw_open_account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Missing(Base):
    """No table has this name."""

    __tablename__ = "vw_missing"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def session_factory(database: Database) -> sessionmaker[LockingSession]:
    """Make the sessions, on a table with a row and a view of it."""
    engine = database.engine(connect_args={"timeout": 0.1})
    with engine.begin() as connection:
        Account.__table__.create(connection)  # type: ignore[attr-defined]
        connection.execute(sa.insert(Account).values(id=1, balance=10))
        connection.exec_driver_sql("CREATE VIEW vw_open_account AS SELECT * FROM vw_account")
    return sessionmaker(engine, class_=LockingSession)


@pytest.mark.parametrize("writes", [False, True], ids=["after a read", "after a write"])
def test_a_view_is_locked_in_a_transaction_that_has_begun(
    session_factory: sessionmaker[LockingSession], writes: bool
) -> None:
    with session_factory() as session, session_factory() as other:
        if writes:
            session.add(Account(id=2, balance=20))
            session.flush()
        else:
            session.connection().exec_driver_sql("BEGIN")
            assert session.get(Account, 1) is not None
        assert session.get_one_entity(OpenAccount, 1, FOR_UPDATE).balance == 10
        assert session.held_locks == {(OpenAccount, (1,)): FOR_UPDATE}
        with pytest.raises(LockNotAvailable):
            other.get_entity(Account, 1, FOR_UPDATE)
        session.commit()
        assert other.get_one_entity(Account, 1, FOR_UPDATE).balance == 10


def test_a_table_that_is_not_there_is_the_database_s_own_error(
    session_factory: sessionmaker[LockingSession],
) -> None:
    with session_factory() as session:
        session.add(Account(id=2, balance=20))
        session.flush()
        with pytest.raises(sa.exc.OperationalError, match="no such table: vw_missing"):
            session.get_entity(Missing, 1, FOR_UPDATE)
