"""Two workers of a queue in order: with the index of docs/claiming.md they get different rows.

Without it InnoDB and SQL Server lock what the sort reads, and the second worker gets nothing; the plan says why.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database

pytestmark = [
    pytest.mark.databases("postgresql", "mysql", "mariadb", "mssql"),
    pytest.mark.read_committed,
]


class Base(DeclarativeBase):
    """The table of this file."""


class Errand(Base):
    """A row of the queue."""

    __tablename__ = "qi_errand"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(sa.String(20))
    priority: Mapped[int]
    note: Mapped[str] = mapped_column(sa.String(20), default="-")


QUEUE = sa.Index("qi_queue", Errand.state, Errand.priority)
#: Words of a plan that sorts, by database; of SQL Server nobody has run it.
SORTS = {"postgresql": "Sort", "mysql": "Sort:", "mariadb": "filesort"}


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def indexed(request: pytest.FixtureRequest, engine: sa.Engine, database: Database) -> bool:
    """Make the table, with the index or without."""
    database.create(Base.metadata)
    with engine.begin() as connection:
        if not request.param:
            QUEUE.drop(connection)
        rows = [
            {"id": number, "state": "new" if number % 50 == 0 else "done", "priority": -number}
            for number in range(1, 1_001)
        ]
        connection.execute(sa.insert(Errand), rows)
    if database.name in ("postgresql", "mysql", "mariadb"):
        words = "ANALYZE" if database.name == "postgresql" else "ANALYZE TABLE"
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"{words} qi_errand").close()
    found: bool = request.param
    return found


def _first_free(session: LockingSession) -> int | None:
    queue = session.entity_set(Errand, LockOptions.ForUpdate | LockOptions.SkipLocked)
    found = session.scalars(queue.where(Errand.state == "new").order_by(Errand.priority).limit(1))
    return next((one.id for one in found), None)


def _plan(engine: sa.Engine) -> str:
    by_priority: Any = (
        sa.select(Errand).where(Errand.state == "new").order_by(Errand.priority).limit(1)
    )
    sql = str(
        by_priority.with_for_update(skip_locked=True).compile(
            engine, compile_kwargs={"literal_binds": True}
        )
    )
    with engine.connect() as connection:
        return "\n".join(str(tuple(row)) for row in connection.exec_driver_sql(f"EXPLAIN {sql}"))


def test_two_workers(
    session: LockingSession,
    other: LockingSession,
    engine: sa.Engine,
    database: Database,
    *,
    indexed: bool,
) -> None:
    first, second = _first_free(session), _first_free(other)
    assert first == 1_000
    gets_nothing = not indexed and database.name != "postgresql"
    assert second == (None if gets_nothing else 950)
    if database.name in SORTS:
        assert (SORTS[database.name] in _plan(engine)) is not indexed
