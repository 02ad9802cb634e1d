"""Alembic: a migration that changes data locks the documents, while the program continues."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, UnlockedWrite
from tests.frameworks.conftest import Enter
from tests.frameworks.program import ON_TWO_DATABASES, Program, add_ten, is_free, save, stored
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

pytest.importorskip("alembic", reason="ALEMBIC IS NOT TESTED")
from alembic import command
from alembic.config import Config

pytestmark = ON_TWO_DATABASES
Alice = Actor[LockingSession]

ENVIRONMENT = """
    from alembic import context

    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()
"""
REVISION = """
    from alembic import op

    from sa_doclock import LockingSession, LockOptions
    from tests.frameworks.program import Order

    revision, down_revision = "1", None


    def upgrade() -> None:
        with LockingSession(op.get_bind()) as session:
            every = session.entity_set(Order, LockOptions.{lock}).order_by(Order.id)
            for order in session.scalars(every):
                order.total = 2 * sum(line.value for line in order.lines)
            session.commit()
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    config.set_main_option("path_separator", "os")
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    (tmp_path / "migrations" / "env.py").write_text(dedent(ENVIRONMENT))
    return config


def write(config: Config, lock: str) -> None:
    folder = Path(config.get_main_option("script_location") or "") / "versions"
    (folder / "1.py").write_text(dedent(REVISION).format(lock=lock))


def prepare(connection: sa.Connection, config: Config) -> None:
    """Make Alembic's table: on SQLite that would wait for the holder too."""
    config.attributes["connection"] = connection
    command.ensure_version(config)
    connection.commit()


def upgrade(connection: sa.Connection, config: Config) -> None:
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
        connection.commit()
    finally:
        connection.rollback()
        connection.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")
        connection.commit()


def test_a_migration_waits_for_the_holder_and_sees_its_line(
    program: Program, config: Config, enter_visitor: Enter, alice: Alice
) -> None:
    write(config, "ForUpdate")
    migrator: Actor[Any] = enter_visitor(program.engine().connect)
    migrator.does(lambda connection: prepare(connection, config))
    alice.does(add_ten)
    queued = migrator.starts(lambda connection: upgrade(connection, config))
    wait_until_blocked(waiter=migrator, holder=alice, step=queued)
    alice.does(save)
    queued.result()
    assert alice.does(stored) == (80, [10, 20, 10])
    assert alice.does(is_free)


def test_a_migration_without_locks_is_refused(
    program: Program, config: Config, alice: Alice
) -> None:
    write(config, "None_")
    with program.engine().connect() as connection, pytest.raises(UnlockedWrite):
        upgrade(connection, config)
    assert alice.does(stored) == (30, [10, 20])
