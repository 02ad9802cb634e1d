"""Headers whose mapped key is not the PRIMARY KEY of their table."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import registry

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions, claim_each
from tests.support.databases import Database

ForUpdate, NoWait = LockOptions.ForUpdate, LockOptions.NoWait
_metadata = sa.MetaData()
_mappers = registry()


def _table(name: str, *more: Any) -> sa.Table:
    return sa.Table(
        name,
        _metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("code", sa.String(20), nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        *more,
    )


def _mapped(table: sa.Table) -> Any:
    entity = type(f"Item of {table.name}", (), {})
    _mappers.map_imperatively(entity, table, primary_key=[table.c.code])
    return entity


_by_constraint = _table("lo_constraint", sa.UniqueConstraint("code", name="lo_constraint_code"))
_by_index = _table("lo_index", sa.Index("lo_index_code", "code", unique=True))
_unnamed = _table("lo_unnamed", sa.UniqueConstraint("code"))
# The program's Table says another primary key than the database has.
_keyless = sa.Table("lo_keyless", _metadata, sa.Column("code", sa.String(20), nullable=False))
_believed = sa.Table(
    "lo_keyless", sa.MetaData(), sa.Column("code", sa.String(20), primary_key=True)
)
ITEMS = {table.name: (table, _mapped(table)) for table in (_by_constraint, _by_index, _unnamed)}
Believed: Any = type("Believed", (), {})
_mappers.map_imperatively(Believed, _believed)


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    database.create(_metadata)
    engine = database.engine()
    with engine.begin() as connection:
        for table, _ in ITEMS.values():
            rows = [{"id": n, "code": f"code {n:03}", "total": n} for n in range(1, 401)]
            connection.execute(table.insert(), rows)
        connection.execute(_keyless.insert(), [{"code": "a"}, {"code": "b"}])
    return engine


@pytest.mark.databases("mysql", "mariadb", "postgresql")
@pytest.mark.parametrize("name", ITEMS)
def test_no_other_row_is_waited_for(engine: sa.Engine, name: str) -> None:
    table, entity = ITEMS[name]
    codes = [f"code {n:03}" for n in (7, 5, 9)]
    with LockingSession(engine) as session, LockingSession(engine) as other:
        other.get_one_entity(entity, "code 300", ForUpdate)
        other.get_one_entity(entity, "code 006", ForUpdate)
        found = session.get_entities(entity, codes, ForUpdate | NoWait)
        assert [one.code for one in found] == sorted(codes)
        with pytest.raises(LockNotAvailable):
            other.get_entities(entity, ["code 005", "code 200"], ForUpdate | NoWait)
    claimed = []
    few = sa.select(entity).where(table.c.total < 4)
    for claim in claim_each(lambda: LockingSession(engine), few, batch=2):
        with claim as one:
            claimed.append(one.code)
    assert claimed == ["code 001", "code 002", "code 003"]


@pytest.mark.databases("mysql", "mariadb")
def test_a_table_without_that_key_is_refused(engine: sa.Engine) -> None:
    with (
        LockingSession(engine) as session,
        pytest.raises(LockNotSupported, match="is not the PRIMARY KEY of this table"),
    ):
        session.get_entities(Believed, ["a", "b"], ForUpdate)
