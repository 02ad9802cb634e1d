"""The queries on the page of a database run on that database."""

from __future__ import annotations

import re

import sqlalchemy as sa

from tests.docs.pages import blocks_of
from tests.support.databases import Database

# The pages say "orders", which somebody's own database may have: tests drop what they create.
TABLE = "lk_order_of_the_docs"


def test_the_queries_of_its_page_run(database: Database) -> None:
    metadata = sa.MetaData()
    sa.Table(TABLE, metadata, sa.Column("id", sa.Integer, primary_key=True))
    database.create(metadata)
    with database.engine().connect() as connection:
        for block in blocks_of(f"docs/{database.name}.md"):
            if block.language == "sql" and not block.generated:
                text = re.sub(r"\borders\b", TABLE, re.sub(r"--.*", "", block.text))
                for statement in filter(str.strip, text.split(";")):
                    connection.exec_driver_sql(statement)
