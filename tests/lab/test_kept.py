"""Kept tables have their rows again, and no others, whatever the test before has done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from lab.running.kept import KeptTables
from tests.support.databases import Database

METADATA = sa.MetaData()
THINGS = sa.Table(
    "kept_things",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(20), default="new"),
    sa.Column("data", sa.JSON),
    sa.Column("more", sa.JSON),
)
ROWS = [(1, "it's", {"a": 'b"c'}), (2, "new", [])]
#: What a test may leave behind.
LEFT = {
    "nothing": [],
    "other rows": [THINGS.delete(), THINGS.insert().values(id=7)],
    "other values": [THINGS.update().values(name="other", more=[1])],
    "no table": [sa.text("DROP TABLE kept_things")],
}


def fill(connection: sa.Connection) -> None:
    first, second = ({"id": id_, "name": name, "data": data} for id_, name, data in ROWS)
    connection.execute(THINGS.insert(), [first])
    connection.execute(THINGS.insert().values(id=second["id"], data=second["data"]))


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    tables = KeptTables(METADATA, fill)
    yield tables
    tables.close()


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_the_next_test_finds_the_rows(
    database: Database, kept: KeptTables, left: list[sa.Executable]
) -> None:
    engine = database.engine()
    kept.put_rows(database)
    with engine.begin() as connection:
        for statement in left:
            connection.execute(statement)
    engine.dispose()  # of SQLite, the next test has another file
    kept.put_rows(database)
    with engine.connect() as connection:
        found = connection.execute(sa.select(THINGS).order_by(THINGS.c.id)).all()
        empty = sa.select(sa.func.count()).where(THINGS.c.more.is_(sa.null()))
        assert connection.scalar(empty) == len(ROWS)
    assert [tuple(row)[:3] for row in found] == ROWS
