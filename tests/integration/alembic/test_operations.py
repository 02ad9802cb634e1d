"""The operations: reversal, autogenerate, logging, exact ``--sql`` scripts, the check-out table."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from logging.config import fileConfig
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.config import Config
from alembic.migration import MigrationContext as CheckoutTableMigrationContext
from alembic.operations import Operations
from alembic.operations.ops import (
    DowngradeOps,
    MigrateOperation,
    MigrationScript,
    UpgradeOps,
)
from alembic.runtime.migration import MigrationContext
from alembic.script import Script

import sa_doclock.alembic
from sa_doclock import checkout_table
from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp
from tests.support.databases import Database

from .conftest import ROOT
from .scripted import Server, migrating

# --------------------------------------------------------------------------------------------------
# The operations in Alembic: reverse, autogenerate, log and import.

ENABLE, DISABLE = EnableSnapshotIsolationOp, DisableSnapshotIsolationOp


@pytest.mark.parametrize("rcs", [False, True])
def test_each_is_the_others_reverse(*, rcs: bool) -> None:
    upgrade = UpgradeOps([ENABLE(read_committed_snapshot=rcs)])
    [back] = upgrade.reverse().ops
    assert isinstance(back, DISABLE)
    assert back.read_committed_snapshot is rcs
    [again] = DowngradeOps([back]).reverse().ops
    assert isinstance(again, ENABLE)
    assert again.read_committed_snapshot is rcs


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (ENABLE(), "op.enable_snapshot_isolation()"),
        (DISABLE(), "op.disable_snapshot_isolation()"),
        (
            ENABLE(read_committed_snapshot=True),
            "op.enable_snapshot_isolation(read_committed_snapshot=True)",
        ),
        (
            DISABLE(read_committed_snapshot=True),
            "op.disable_snapshot_isolation(read_committed_snapshot=True)",
        ),
    ],
)
def test_autogenerate_renders_code_that_runs(operation: MigrateOperation, code: str) -> None:
    context = MigrationContext.configure(dialect_name="mssql")
    rendered = render_python_code(UpgradeOps([operation]), migration_context=context)
    assert rendered.splitlines()[1].strip() == code
    server = Server(snapshot=int("disable" in code), read_committed_snapshot="disable" in code)
    with migrating(server) as op:
        exec(code, {"op": op})  # exactly the rendered code
    assert len(server.altered()) == 1 + ("True" in code)


def test_autogenerate_honours_the_module_prefix() -> None:
    context = MigrationContext.configure(dialect_name="mssql")
    rendered = render_python_code(
        UpgradeOps([ENABLE()]), alembic_module_prefix="migrate.", migration_context=context
    )
    assert "    migrate.enable_snapshot_isolation()" in rendered.splitlines()


def test_alembic_check_can_name_them() -> None:
    diffs = UpgradeOps([ENABLE(), DISABLE(read_committed_snapshot=True)]).as_diffs()
    assert diffs == [("enable_snapshot_isolation", False), ("disable_snapshot_isolation", True)]


@pytest.fixture
def users_environment(tmp_path: Path) -> Config:
    """Run ``alembic init`` as a user would, for an SQLite file."""
    config = Config(tmp_path / "alembic.ini")
    command.init(config, str(tmp_path / "migrations"))
    config = Config(tmp_path / "alembic.ini")
    config.set_main_option("sqlalchemy.url", f"sqlite:///{tmp_path / 'app.db'}")
    return config


def test_a_generated_revision_imports_what_it_needs(users_environment: Config) -> None:
    users_environment.set_main_option("revision_environment", "true")

    def add_ours(_1: object, _2: object, directives: list[MigrationScript]) -> None:
        upgrade = UpgradeOps([ENABLE()])
        directives[0].upgrade_ops, directives[0].downgrade_ops = (
            upgrade,
            upgrade.reverse_into(DowngradeOps([])),
        )

    made = command.revision(
        users_environment, "snapshots", process_revision_directives=add_ours, rev_id="a1"
    )
    assert isinstance(made, Script)
    code = Path(made.path).read_text()
    assert "import sa_doclock.alembic" in code.splitlines()
    assert "    op.enable_snapshot_isolation()" in code.split("def upgrade")[1].splitlines()
    assert "    op.disable_snapshot_isolation()" in code.split("def downgrade")[1].splitlines()
    command.upgrade(users_environment, "head")
    command.downgrade(users_environment, "base")


def test_the_log_is_seen_with_the_alembic_ini_that_alembic_makes(users_environment: Config) -> None:
    """fileConfig() in env.py disables existing loggers, which would include ours."""
    log = logging.getLogger("alembic.sa_doclock")
    assert users_environment.config_file_name is not None
    fileConfig(users_environment.config_file_name)
    assert not log.disabled
    assert log.isEnabledFor(logging.INFO)


@pytest.mark.slow
def test_without_alembic_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['alembic'] = None; import sa_doclock.alembic"
    done = subprocess.run(  # sys.executable
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: sa_doclock.alembic needs Alembic: pip install 'sa-doclock[alembic]'"
    )


# --------------------------------------------------------------------------------------------------
# ``--sql`` writes the exact script, with every ALTER DATABASE outside a transaction.

ALLOW_ON = """\
-- waits until every transaction that is open in the database has ended, blocks nobody
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 1)
    ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND snapshot_isolation_state = 1)
    THROW 50000, 'ALLOW_SNAPSHOT_ISOLATION is not ON yet, see sys.databases.snapshot_isolation_state', 1;

GO

"""  # golden text
READ_COMMITTED_ON = """\
-- fails at once (5070) while any other connection to the database is open
IF DB_NAME() IN ('master', 'model', 'msdb', 'tempdb')
    THROW 50000, 'READ_COMMITTED_SNAPSHOT is not set in a system database, connect to your own', 1;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = 1)
    ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH NO_WAIT;
IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = DB_NAME() AND is_read_committed_snapshot_on = 1)
    THROW 50000, 'READ_COMMITTED_SNAPSHOT is not ON yet, see sys.databases.is_read_committed_snapshot_on', 1;

GO

"""  # golden text


def _off(script: str) -> str:
    off = script.replace(" ON;", " OFF;").replace("not ON yet", "not OFF yet")
    return off.replace("= 1)", "= 0)").replace(" ON WITH", " OFF WITH")


ALLOW_OFF, READ_COMMITTED_OFF = _off(ALLOW_ON), _off(READ_COMMITTED_ON)
COMMIT, BEGIN = "COMMIT;\n\nGO\n\n", "BEGIN TRANSACTION;\n\n"
Op = type[EnableSnapshotIsolationOp] | type[DisableSnapshotIsolationOp]


def script_of(operation: Op, dialect: str, *, rcs: bool = False, **options: object) -> str:
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output, **options}
    )
    with context.begin_transaction():
        Operations(context).invoke(operation(read_committed_snapshot=rcs))
    return output.getvalue()


def altered_in_transaction(script: str) -> list[str]:
    """Return each ALTER DATABASE of the script that would raise error 226."""
    depth, found = 0, []
    for line in script.splitlines():
        depth += line.startswith("BEGIN TRANSACTION")
        depth -= line.startswith("COMMIT")
        found += [line] * (bool(depth) and "ALTER DATABASE" in line)
    return found


@pytest.mark.parametrize(
    ("operation", "rcs", "batches"),
    [
        (ENABLE, False, ALLOW_ON),
        (DISABLE, False, ALLOW_OFF),
        (ENABLE, True, READ_COMMITTED_ON + ALLOW_ON),
        (DISABLE, True, READ_COMMITTED_OFF + ALLOW_OFF),
    ],
)
def test_script(operation: Op, batches: str, *, rcs: bool) -> None:
    script = script_of(operation, "mssql", rcs=rcs)
    assert script == BEGIN + COMMIT + batches + BEGIN + COMMIT


def test_without_transactional_ddl_no_transaction_is_written_around_it() -> None:
    assert script_of(ENABLE, "mssql", transactional_ddl=False) == ALLOW_ON


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite", "oracle"])
@pytest.mark.parametrize("operation", [ENABLE, DISABLE])
def test_not_one_statement_for_another_database(operation: Op, dialect: str) -> None:
    script = script_of(operation, dialect, rcs=True)
    # PostgreSQL's DDL is transactional, so Alembic writes BEGIN and COMMIT itself.
    assert script.replace("BEGIN;", "").replace("COMMIT;", "").split() == []


def test_script_of_the_ready_migration(environment: Callable[..., Config]) -> None:
    output = io.StringIO()
    config = environment("mssql+pyodbc://", output)
    command.upgrade(config, "head", sql=True)
    command.downgrade(config, "head:base", sql=True)
    # Alembic's own statements vary by version; only the position of ours matters.
    script = output.getvalue()
    assert altered_in_transaction(script) == []
    before, after = script.split(ALLOW_ON)
    between, last = after.split(ALLOW_OFF)
    assert "CREATE TABLE sa_doclock_version" in before
    assert before.endswith(COMMIT)
    assert re.match(r"BEGIN TRANSACTION;\n\nINSERT INTO sa_doclock_version ", between)
    assert "VALUES ('sa_doclock_0001')" in between
    assert between.endswith(COMMIT)
    assert re.match(r"BEGIN TRANSACTION;\n\nDELETE FROM sa_doclock_version ", last)
    assert COMMIT in last


def test_the_check_for_error_226_can_fail() -> None:
    assert altered_in_transaction(BEGIN + ALLOW_ON + COMMIT) != []


# --------------------------------------------------------------------------------------------------
# The check-out table: an operation creates it, autogenerate writes it once and leaves it alone.

NAME = "co_alembic"


def written(connection: sa.Connection, metadata: sa.MetaData) -> str:
    """Return the code that autogenerate writes into upgrade()."""
    others_tables = {"include_name": lambda name, kind, _: kind != "table" or name == NAME}
    script = produce_migrations(
        CheckoutTableMigrationContext.configure(connection, opts=others_tables), metadata
    )
    upgrade, downgrade = script.upgrade_ops, script.downgrade_ops
    assert isinstance(upgrade, UpgradeOps)
    assert downgrade is not None
    code = render_python_code(upgrade)
    return "" if upgrade.is_empty() else f"{code} | {render_python_code(downgrade)}"


def test_it_is_created_written_and_left_alone(database: Database) -> None:
    metadata, other = sa.MetaData(), sa.MetaData()
    table = checkout_table(metadata, NAME)
    engine = database.engine()
    with engine.connect() as connection:
        metadata.drop_all(connection)
        code = written(connection, metadata)
        assert f"op.create_checkout_table(name={NAME!r})" in code
        assert f"op.drop_checkout_table(name={NAME!r})" in code
        assert "create_index" not in code
        assert "create_table(" not in code

        op = Operations(CheckoutTableMigrationContext.configure(connection))
        op.create_checkout_table(name=NAME)  # type: ignore[attr-defined]
        indexes = {one["name"] for one in sa.inspect(connection).get_indexes(NAME)}
        assert indexes == {f"ix_{NAME}_owner", f"ix_{NAME}_until"}
        assert connection.scalars(sa.select(table.c.id)).all() == []

        assert written(connection, metadata) == ""  # known
        assert NAME not in written(connection, other)  # unknown

        op.drop_checkout_table(name=NAME)  # type: ignore[attr-defined]
        assert not sa.inspect(connection).has_table(NAME)
        connection.commit()


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "mssql", "sqlite"])
def test_the_script(dialect: str) -> None:
    output = io.StringIO()
    context = CheckoutTableMigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output}
    )
    Operations(context).invoke(sa_doclock.alembic.CreateCheckoutTableOp(schema="sales"))
    sql = " ".join(output.getvalue().split())
    time = {"mysql": "DATETIME(6)", "mariadb": "DATETIME(6)", "mssql": "DATETIME2(6)"}
    time |= {"postgresql": "TIMESTAMP WITHOUT TIME ZONE", "sqlite": "DATETIME"}
    assert f"until {time[dialect]}" in sql.replace("[", "").replace("]", "")
    assert ("ENGINE=InnoDB" in sql) is (dialect in ("mysql", "mariadb"))
    assert "ix_doclock_checkouts_owner" in sql
    assert "sales" in sql
