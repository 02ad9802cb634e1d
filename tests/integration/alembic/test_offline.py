"""``--sql``: the exact script, and that no ALTER DATABASE is within a transaction of it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from alembic import command
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp

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
ENABLE, DISABLE = EnableSnapshotIsolationOp, DisableSnapshotIsolationOp


def script_of(operation: Op, dialect: str, *, rcs: bool = False, **options: object) -> str:
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output, **options}
    )
    with context.begin_transaction():
        Operations(context).invoke(operation(read_committed_snapshot=rcs))
    return output.getvalue()


def altered_in_transaction(script: str) -> list[str]:
    """Return every ALTER DATABASE of the script that would be error 226."""
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
    # PostgreSQL's DDL is transactional, so Alembic itself writes the frame.
    assert script.replace("BEGIN;", "").replace("COMMIT;", "").split() == []


def test_script_of_the_ready_migration(environment: Callable[..., Config]) -> None:
    output = io.StringIO()
    config = environment("mssql+pyodbc://", output)
    command.upgrade(config, "head", sql=True)
    command.downgrade(config, "head:base", sql=True)
    # Alembic's own statements differ with its version; what matters is where ours are.
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
