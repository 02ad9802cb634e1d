"""A schema change under load: nobody waits behind a migration that waits."""

from __future__ import annotations

import io
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.exc import OperationalError

from tests.recipes.conftest import Recipe, text_of_program
from tests.recipes.load import start
from tests.support.databases import Database

pytestmark = [
    pytest.mark.databases("postgresql", "mysql", "mariadb"),
    pytest.mark.not_databases("postgresql-pipeline"),
]
#: Of the statements of the program: longer than the second of the migration, with a busy machine in mind.
PATIENCE = {
    "postgresql": "SET lock_timeout = '8s'",
    "mysql": "SET SESSION lock_wait_timeout = 8",
    "mariadb": "SET SESSION lock_wait_timeout = 8",
}
QUEUES = ("op.execute(limit)", "pass")
KILLED = """

import os
import signal
from types import SimpleNamespace

from alembic.migration import MigrationContext
from alembic.operations import Operations

time = SimpleNamespace(sleep=lambda _: os.kill(os.getpid(), signal.SIGKILL))
with sa.create_engine("sqlite:///shop.db").connect() as connection:
    with Operations.context(MigrationContext.configure(connection)):
        upgrade()
"""


@pytest.fixture
def table(database: Database) -> sa.Table:
    metadata = sa.MetaData()
    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Integer)
    table = sa.Table("orders", metadata, *columns)
    database.create(metadata)
    with database.engine().begin() as connection:
        connection.execute(table.insert().values(id=1, total=0))
    return table


def migrate_under_load(program: Any, database: Database, table: sa.Table) -> None:
    """Migrate while a report reads the table, and a program writes it."""
    paused = threading.Event()
    program.time = SimpleNamespace(sleep=lambda _: paused.set())
    program.patiently.__defaults__ = (100_000, 0.0)

    def migrate() -> None:
        with database.engine().connect() as connection:
            with Operations.context(MigrationContext.configure(connection)):
                program.upgrade()
            connection.commit()

    with (
        database.engine().connect() as report,
        database.engine().connect() as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        report.execute(sa.select(table)).all()
        migration = thread.submit(migrate)
        try:
            paused.wait(3)  # it has waited once; without its limit it waits still
            writer.exec_driver_sql(PATIENCE[database.name])
            for _ in range(3):
                writer.execute(table.update().values(total=table.c.total + 1))
                writer.commit()
        finally:
            writer.rollback()
            writer.invalidate()  # with its limit
            report.rollback()
            migration.result(60)
    found = sa.inspect(database.engine()).get_columns("orders")
    assert [one["name"] for one in found] == ["id", "total", "note"]


@pytest.mark.slow
def test_the_program_goes_on(recipe: Recipe, database: Database, table: sa.Table) -> None:
    migrate_under_load(recipe("schema-change"), database, table)


@pytest.mark.slow
def test_after_one_that_was_killed(
    recipe: Recipe, database: Database, table: sa.Table, tmp_path: Path
) -> None:
    with database.engine().connect() as report:
        report.execute(sa.select(table)).all()
        killed = start(text_of_program("schema-change") + KILLED, database.url, tmp_path)
        assert killed.wait(60) == -signal.SIGKILL
    migrate_under_load(recipe("schema-change"), database, table)


@pytest.mark.slow
def test_one_that_never_gets_its_turn_says_so(
    recipe: Recipe, database: Database, table: sa.Table
) -> None:
    program = recipe("schema-change")
    program.time = SimpleNamespace(sleep=lambda _: None)
    program.patiently.__defaults__ = (1, 0.0)
    with database.engine().connect() as report, database.engine().connect() as connection:
        report.execute(sa.select(table)).all()
        context = Operations.context(MigrationContext.configure(connection))
        with context, pytest.raises(OperationalError):
            program.upgrade()
        connection.invalidate()


@pytest.mark.slow
@pytest.mark.databases("postgresql")
def test_without_the_limit_it_goes_wrong(
    recipe: Recipe, database: Database, table: sa.Table
) -> None:
    program = recipe("schema-change", QUEUES)
    with pytest.raises(OperationalError):
        migrate_under_load(program, database, table)


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("other", ["sqlite", "mssql"])
def test_a_database_without_a_limit_is_refused(recipe: Recipe, other: str) -> None:
    program = recipe("schema-change")
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written}
    context = MigrationContext.configure(dialect_name=other, opts=options)
    with (
        Operations.context(context),
        pytest.raises(NotImplementedError, match=f"LIMITS has no lock timeout for {other}"),
    ):
        program.upgrade()
    assert written.getvalue() == ""
