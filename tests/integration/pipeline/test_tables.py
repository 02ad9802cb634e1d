"""Tables on which an UPDATE has more effects: triggers, views, partitions, rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import NotSupportedError
from sqlalchemy.orm.exc import StaleDataError

from tests.integration.pipeline.conftest import Sessions
from tests.integration.pipeline.models import ON_POSTGRESQL, Note

pytestmark = [*ON_POSTGRESQL, pytest.mark.alters_tables]

both = pytest.mark.parametrize("pipeline", [False, True])

_SWALLOW = (
    "CREATE FUNCTION pl_swallow() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql"
)
_REPLACE = """
CREATE FUNCTION pl_replace() RETURNS trigger AS
'BEGIN UPDATE pl_kept SET number = NEW.number WHERE id = OLD.id; RETURN NEW; END' LANGUAGE plpgsql
"""

#: The changes to the notes' table, by name.
OTHERWISE = {
    "a trigger that swallows the row": (
        _SWALLOW,
        "CREATE TRIGGER pl_no BEFORE UPDATE ON pl_note FOR EACH ROW EXECUTE FUNCTION pl_swallow()",
    ),
    "a view": (
        "ALTER TABLE pl_note RENAME TO pl_kept",
        "CREATE VIEW pl_note AS SELECT * FROM pl_kept",
    ),
    "a view with a trigger": (
        "ALTER TABLE pl_note RENAME TO pl_kept",
        "CREATE VIEW pl_note AS SELECT id, text, number, data FROM pl_kept LIMIT 9",
        _REPLACE,
        (
            "CREATE TRIGGER pl_to INSTEAD OF UPDATE ON pl_note FOR EACH ROW "
            "EXECUTE FUNCTION pl_replace()"
        ),
    ),
    "partitions": (
        "ALTER TABLE pl_note RENAME TO pl_kept",
        "CREATE TABLE pl_note (id int, text text, number int, data json) PARTITION BY LIST (number)",
        "CREATE TABLE pl_few PARTITION OF pl_note FOR VALUES IN (1, 2, 3)",
        "CREATE TABLE pl_many PARTITION OF pl_note DEFAULT",
        "INSERT INTO pl_note SELECT * FROM pl_kept",
    ),
}
_BACK = (
    "DROP VIEW IF EXISTS pl_note",
    "ALTER TABLE pl_kept RENAME TO pl_note",
)


@pytest.fixture(params=OTHERWISE)
def otherwise(request: pytest.FixtureRequest, elsewhere: sa.Engine) -> Iterator[str]:
    """Change the notes' table in this way."""
    with elsewhere.connect() as connection:
        for statement in OTHERWISE[request.param]:
            connection.exec_driver_sql(statement)
        yield request.param
        if request.param == "partitions":
            connection.exec_driver_sql("DROP TABLE pl_note")
        if request.param != "a trigger that swallows the row":
            for statement in _BACK[request.param == "partitions" :]:
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS pl_swallow, pl_replace CASCADE")


@both
def test_it_finds_its_row_or_not_as_ever(
    make: Sessions, elsewhere: sa.Engine, otherwise: str, pipeline: bool
) -> None:
    session = make(pipeline=pipeline)
    session.get_one(Note, 1).number = 50
    if "swallows" in otherwise:
        with pytest.raises(StaleDataError, match="'pl_note' expected to update 1"):
            session.save_changes()
    else:
        session.save_changes()
    session.close()
    with elsewhere.connect() as connection:
        found = connection.scalar(sa.select(Note.number).where(Note.id == 1))
    assert found == (1 if "swallows" in otherwise else 50)


def test_rules_that_rewrite_an_update_are_refused(make: Sessions, elsewhere: sa.Engine) -> None:
    with elsewhere.connect() as connection:
        connection.exec_driver_sql(
            "CREATE RULE pl_also AS ON UPDATE TO pl_note DO ALSO UPDATE pl_bill SET total = 1"
        )
    session = make()
    session.get_one(Note, 1).number = 50
    with pytest.raises(NotSupportedError, match="rules"):
        session.save_changes()
    session.rollback()
    assert session.get_one(Note, 1).number == 1
    session.close()
    session = make(pipeline=False)
    session.get_one(Note, 1).number = 50
    session.save_changes()
