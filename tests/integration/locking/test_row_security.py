"""PostgreSQL: a row that the account may read but not lock is not a missing row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockNotSupported, LockOptions, claim_each
from sa_doclock.dialects import postgresql
from tests.support.databases import Database

pytestmark = pytest.mark.databases("postgresql")
ROLE = "doclock_reader"


class Base(DeclarativeBase):
    """The table of this file."""


class Doc(Base):
    __tablename__ = "rls_doc"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    mine: Mapped[bool]


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    """Return an engine whose account may read both documents, and change only the first."""
    database.create(Base.metadata)
    admin = database.engine()
    with admin.begin() as connection:
        for statement in (
            f"CREATE ROLE {ROLE}",
            f"GRANT SELECT, UPDATE ON rls_doc TO {ROLE}",
            "INSERT INTO rls_doc VALUES (1, true), (2, false)",
            "ALTER TABLE rls_doc ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY readable ON rls_doc FOR SELECT USING (true)",
            "CREATE POLICY changeable ON rls_doc FOR UPDATE USING (mine)",
        ):
            connection.exec_driver_sql(statement)
    engine = database.engine(poolclass=sa.NullPool)

    @event.listens_for(engine, "connect")
    def _(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET ROLE {ROLE}")
        cursor.close()
        connection.commit()

    yield engine
    engine.dispose()
    with admin.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {ROLE}")
        connection.exec_driver_sql(f"DROP ROLE {ROLE}")


WAYS: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda s: s.get_entity(Doc, 2, LockOptions.ForUpdate),
    "get_entity, shared": lambda s: s.get_entity(Doc, 2, LockOptions.SharedRead),
    "get_one_entity": lambda s: s.get_one_entity(Doc, 2, LockOptions.ForUpdate),
    "get_entity, limited": lambda s: s.get_entity(Doc, 2, LockOptions.ForUpdate, lock_timeout=5),
    "get_entities": lambda s: s.get_entities(Doc, [1, 2, 3], LockOptions.ForUpdate),
    "get_document": lambda s: s.get_document(Doc, 2, LockOptions.ForUpdate),
    "locked": lambda s: s.locked(Doc, 2).__enter__(),
    "lock": lambda s: s.lock(s.get_one(Doc, 2)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_row_that_cannot_be_locked(
    engine: sa.Engine, way: Callable[[LockingSession], Any]
) -> None:
    with LockingSession(engine) as session:
        with pytest.raises(LockNotSupported, match=r"Doc 2 can be read.* row-level security"):
            way(session)
        session.rollback()
        assert session.get_one_entity(Doc, 1, LockOptions.ForUpdate).mine
        assert session.get_entity(Doc, 3, LockOptions.ForUpdate) is None
    with LockingSession(engine) as session:
        found = session.get_one_entity(Doc, 2, LockOptions.SnapshotRead)
        assert not found.mine


@pytest.mark.parametrize("batch", [1, 2])
def test_a_claim(engine: sa.Engine, batch: int) -> None:
    claimed: list[int] = []
    with pytest.raises(LockNotSupported, match="Doc 2 can be read"):
        _claim_all(engine, batch, claimed)
    assert claimed == ([1] if batch == 1 else [])


def _claim_all(engine: sa.Engine, batch: int, claimed: list[int]) -> None:
    docs = sa.select(Doc).order_by(Doc.id)
    for claim in claim_each(lambda: LockingSession(engine), docs, batch=batch):
        with claim as row:
            claimed.append(row.id)


def test_a_row_that_another_holds_is_skipped(engine: sa.Engine, database: Database) -> None:
    with LockingSession(database.engine()) as holder:
        holder.get_one_entity(Doc, 1, LockOptions.ForUpdate)
        where = Doc.mine
        assert not list(claim_each(lambda: LockingSession(engine), sa.select(Doc).where(where)))


def test_a_table_is_asked_about_once(
    engine: sa.Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask: Any = postgresql.ask_driver

    def ask_driver(connection: sa.Connection, statement: str, **parameters: Any) -> Any:
        asked.append(statement)
        return ask(connection, statement, **parameters)

    monkeypatch.setattr(postgresql, "ask_driver", ask_driver)
    with LockingSession(database.engine()) as session:
        for missing in (3, 4):
            session.get_entity(Doc, missing, LockOptions.ForUpdate)
    assert ["relrowsecurity" in one for one in asked].count(True) == 1
    assert engine


def test_a_table_that_got_it_later(engine: sa.Engine, database: Database) -> None:
    admin = database.engine()
    for state in ("DISABLE", "ENABLE"):
        with admin.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE rls_doc {state} ROW LEVEL SECURITY")
        with LockingSession(engine) as session:
            assert session.get_entity(Doc, 3, LockOptions.ForUpdate) is None
    with LockingSession(engine) as session, pytest.raises(LockNotSupported, match="Doc 2"):
        session.get_entity(Doc, 2, LockOptions.ForUpdate)


def test_a_view_of_the_table(engine: sa.Engine, database: Database) -> None:
    admin = database.engine()
    with admin.begin() as connection:
        connection.exec_driver_sql("CREATE VIEW rls_view AS SELECT * FROM rls_doc")
        connection.exec_driver_sql(f"ALTER VIEW rls_view OWNER TO {ROLE}")

    class Seen(DeclarativeBase):
        pass

    class SeenDoc(Seen):
        __tablename__ = "rls_view"
        id: Mapped[int] = mapped_column(primary_key=True)

    try:
        with LockingSession(engine) as session:
            assert session.get_entity(SeenDoc, 3, LockOptions.ForUpdate) is None
            assert session.get_entity(SeenDoc, 1, LockOptions.ForUpdate)
            with pytest.raises(LockNotSupported, match="SeenDoc 2 can be read"):
                session.get_entity(SeenDoc, 2, LockOptions.ForUpdate)
    finally:
        with admin.begin() as connection:
            connection.exec_driver_sql("DROP VIEW rls_view")
