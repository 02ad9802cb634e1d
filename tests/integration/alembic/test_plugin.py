"""Alembic's entry point: autogenerate knows a check-out table without an import in env.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import alembic
import pytest

from .conftest import ROOT

HAS_PLUGINS = tuple(map(int, alembic.__version__.split(".")[:2])) >= (1, 18)

#: What autogenerate makes of a check-out table that is new, there, and there without its metadata.
AUTOGENERATE = """
import sys
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine

from sa_doclock import checkout_table

assert "sa_doclock.alembic" not in sys.modules
metadata = MetaData()
checkout_table(metadata, "co_alembic")
with create_engine("sqlite://").connect() as connection:
    context = MigrationContext.configure(connection, opts={"autogenerate_plugins": PLUGINS})
    print(render_python_code(produce_migrations(context, metadata).upgrade_ops))
    metadata.create_all(connection)
    for found in metadata, MetaData():
        print(produce_migrations(context, found).upgrade_ops.is_empty())
"""


@pytest.fixture
def autogenerate(tmp_path: Path) -> Callable[..., str]:
    """Run autogenerate in a process where sa_doclock has the entry point of pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text()
    group = r'^\[project\.entry-points\."alembic\.plugins"\]\n"(.+)" = "(.+)"$'
    ((name, module),) = re.findall(group, project, re.MULTILINE)
    info = tmp_path / "sa_doclock-0.1.0.dist-info"  # an installed one, later on the path, is hidden
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sa-doclock\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[alembic.plugins]\n{name} = {module}\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    def run(*plugins: str) -> str:
        code = AUTOGENERATE.replace("PLUGINS", repr(list(plugins)))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.skipif(not HAS_PLUGINS, reason="Alembic has plugins since 1.18")
def test_autogenerate_knows_the_table_without_an_import(autogenerate: Callable[..., str]) -> None:
    output = autogenerate("alembic.autogenerate.*")  # Alembic's default
    assert "op.create_checkout_table(name='co_alembic')" in output
    assert "op.create_table(" not in output
    assert output.split()[-2:] == ["True", "True"]


@pytest.mark.skipif(not HAS_PLUGINS, reason="Alembic has plugins since 1.18")
def test_a_program_can_leave_the_plugin_out(autogenerate: Callable[..., str]) -> None:
    output = autogenerate("alembic.autogenerate.*", "~alembic.autogenerate.sa_doclock")
    assert "op.create_table('co_alembic'" in output
    assert output.split()[-2:] == ["True", "False"]  # it would drop the table
