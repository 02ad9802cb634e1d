"""MySQL and MariaDB: querying a table's storage engine has no effect that the program sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.integration.questions.conftest import Run
from tests.support.databases import Database
from tests.support.models import Customer

pytestmark = pytest.mark.databases("mysql", "mariadb")

ForUpdate = LockOptions.ForUpdate


class Base(DeclarativeBase):
    """Tables of this file."""


class Mark(Base):
    """Its comment looks like the line with the storage engine."""

    __tablename__ = "qu_mark"
    __table_args__ = {  # noqa: RUF012
        **{f"{name}_engine": "InnoDB" for name in ("mysql", "mariadb")},
        "comment": "a\n) ENGINE=MyISAM",
    }
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seen: Mapped[int] = mapped_column(default=0)


class Passing(Base):
    """Only ever created as a temporary table."""

    __tablename__ = "qu_passing"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture(autouse=True)
def marks(documents: Database) -> None:
    """Create the table, with one row."""
    table: Any = Mark.__table__
    documents.create(_metadata_of(table))
    with documents.observer().connect() as connection:
        connection.execute(sa.insert(table).values(id=1, seen=0))


def _metadata_of(table: sa.Table) -> sa.MetaData:
    metadata = sa.MetaData()
    table.to_metadata(metadata)
    return metadata


def test_a_comment_is_no_storage_engine(run: Run) -> None:
    def play(engine: sa.Engine) -> int:
        with LockingSession(engine) as session:
            return session.get_one_entity(Mark, 1, ForUpdate).id

    assert run(play) == 1


@pytest.mark.databases("mysql")  # MariaDB's information_schema has no temporary tables
def test_a_temporary_table_without_row_locks_is_refused(run: Run) -> None:
    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent, LockingSession(lent) as session:
            lent.exec_driver_sql("CREATE TEMPORARY TABLE qu_passing (id int) ENGINE=MyISAM")
            lent.commit()
            with pytest.raises(LockNotSupported, match="'qu_passing' is stored by MyISAM"):
                session.get_entity(Passing, 1, ForUpdate)

    run(play)


@pytest.fixture
def account(documents: Database) -> Iterator[sa.URL]:
    """Create an account that may read and write one column each, enough for FOR UPDATE."""
    url = sa.make_url(documents.url).set(username="qu_columns", password="columns")
    with documents.observer().connect() as connection:
        connection.exec_driver_sql("DROP USER IF EXISTS qu_columns")
        connection.exec_driver_sql("CREATE USER qu_columns IDENTIFIED BY 'columns'")
        connection.exec_driver_sql(
            "GRANT SELECT (id, seen), UPDATE (seen) ON qu_mark TO qu_columns"
        )
        connection.exec_driver_sql("GRANT SELECT ON lk_customer TO qu_columns")
    yield url
    with documents.observer().connect() as connection:
        connection.exec_driver_sql("DROP USER qu_columns")


@pytest.mark.parametrize("stored_by", ["InnoDB", "MyISAM"])
def test_an_account_with_privileges_on_columns_alone(
    account: sa.URL, documents: Database, elsewhere: Callable[..., list[Any]], stored_by: str
) -> None:
    """SHOW CREATE TABLE is refused to it, but information_schema has the table."""
    with documents.observer().connect() as connection:
        connection.exec_driver_sql(f"ALTER TABLE qu_mark ENGINE={stored_by}")
    engine = sa.create_engine(account, isolation_level="REPEATABLE READ")
    with LockingSession(engine) as session:
        locking = sa.select(Mark).with_for_update()
        if stored_by == "MyISAM":
            with pytest.raises(LockNotSupported, match="is stored by MyISAM"):
                session.scalars(locking).all()
        else:
            session.scalars(locking).all()
            elsewhere(sa.update(Customer).where(Customer.id == 1).values(name="Zoe"))
            assert session.scalars(sa.select(Customer.name).where(Customer.id == 1)).one() == "Zoe"
    engine.dispose()


class Watched(DeclarativeBase):
    """Views of this file."""


class MarkView(Watched):
    __tablename__ = "qu_mark_view"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("key", [1, 2])
def test_a_view_is_asked_for_without_a_snapshot(
    documents: Database, elsewhere: Callable[..., list[Any]], key: int
) -> None:
    """The next read shows later commits of others, even if no row was found."""
    with documents.observer().connect() as connection:
        connection.exec_driver_sql("CREATE OR REPLACE VIEW qu_mark_view AS SELECT id FROM qu_mark")
    engine = sa.create_engine(documents.url, isolation_level="REPEATABLE READ")
    try:
        with LockingSession(engine) as session:
            locking = sa.select(MarkView).where(MarkView.id == key).with_for_update()
            assert len(session.scalars(locking).all()) == (key == 1)
            elsewhere(sa.update(Customer).where(Customer.id == 1).values(name="Zoe"))
            assert session.scalars(sa.select(Customer.name).where(Customer.id == 1)).one() == "Zoe"
    finally:
        engine.dispose()
        with documents.observer().connect() as connection:
            connection.exec_driver_sql("DROP VIEW qu_mark_view")


def test_the_table_is_that_of_the_connections_own_database(run: Run, documents: Database) -> None:
    """The program may have changed it."""
    with documents.observer().connect() as connection:
        connection.exec_driver_sql("DROP DATABASE IF EXISTS qu_other")
        connection.exec_driver_sql("CREATE DATABASE qu_other")
        connection.exec_driver_sql("CREATE TABLE qu_other.qu_mark (id int, seen int) ENGINE=MyISAM")

    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent, LockingSession(lent) as session:
            lent.exec_driver_sql("USE qu_other")
            lent.commit()
            with pytest.raises(LockNotSupported, match="is stored by MyISAM"):
                session.get_entity(Mark, 1, ForUpdate)
            lent.invalidate()

    try:
        run(play)
    finally:
        with documents.observer().connect() as connection:
            connection.exec_driver_sql("DROP DATABASE qu_other")
