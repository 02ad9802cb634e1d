"""The operations as Alembic sees them: reverse, autogenerate, the log, the import."""

from __future__ import annotations

import logging
import subprocess
import sys
from logging.config import fileConfig
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import render_python_code
from alembic.config import Config
from alembic.operations.ops import (
    DowngradeOps,
    MigrateOperation,
    MigrationScript,
    UpgradeOps,
)
from alembic.runtime.migration import MigrationContext
from alembic.script import Script

from sa_doclock.alembic import DisableSnapshotIsolationOp, EnableSnapshotIsolationOp

from .conftest import ROOT
from .scripted import Server, migrating

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
        exec(code, {"op": op})  # the very code that was rendered
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
    """``alembic init``, as a user has it, on an SQLite file."""
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
    """fileConfig() in env.py disables the loggers that exist by then, ours would be one."""
    log = logging.getLogger("alembic.sa_doclock")
    assert users_environment.config_file_name is not None
    fileConfig(users_environment.config_file_name)
    assert not log.disabled
    assert log.isEnabledFor(logging.INFO)


@pytest.mark.slow
def test_without_alembic_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['alembic'] = None; import sa_doclock.alembic"
    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: sa_doclock.alembic needs Alembic: pip install 'sa-doclock[alembic]'"
    )
