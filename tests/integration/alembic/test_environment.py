"""migrations/: run on SQLite through the API and the command line, and on the scripted server."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import alembic as alembic_plugin
import pytest
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Column, MetaData, String, Table, create_engine, inspect, select, text
from sqlalchemy.pool import NullPool

from tests.support.databases import Database
from tests.support.fresh_process import Ended, FreshProcesses

from .conftest import MIGRATIONS, ROOT
from .scripted import URL, Server, refusal, serving

REVISION = "sa_doclock_0001"
Environment = Callable[..., Config]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


def alembic(
    *arguments: str, cwd: Path = ROOT, url: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a DBA would."""
    environ = {name: value for name, value in os.environ.items() if name != "SA_DOCLOCK_URL"}
    if url is not None:
        environ["SA_DOCLOCK_URL"] = url
    line = [sys.executable, "-W", "error", "-m", "alembic", "-c", str(MIGRATIONS / "alembic.ini")]
    return subprocess.run(  # sys.executable
        [*line, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def alembic_in(fresh: FreshProcesses, *arguments: str) -> Ended:
    """Run the command line like :func:`alembic`, without the second that Python needs to start."""
    line = ["alembic", "-c", str(MIGRATIONS / "alembic.ini"), *arguments]
    return fresh.run(f"""if True:
        import os, runpy, sys, warnings

        warnings.simplefilter("error")
        os.environ.pop("SA_DOCLOCK_URL", None)
        os.chdir({str(ROOT)!r})
        sys.argv = {line!r}
        runpy.run_module("alembic", run_name="__main__", alter_sys=True)
    """)


def tables(url: str) -> dict[str, list[str]]:
    """Return each table's name with the values of its first column."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return {
            name: list(connection.scalars(text(f"SELECT * FROM {name}")))
            for name in inspect(connection).get_table_names()
        }


def test_on_sqlite_it_records_the_revision_and_does_nothing_else(
    environment: Environment, sqlite_url: str
) -> None:
    command.upgrade(environment(sqlite_url), "head")
    assert tables(sqlite_url) == {"sa_doclock_version": [REVISION]}
    command.upgrade(environment(sqlite_url), "head")
    assert tables(sqlite_url) == {"sa_doclock_version": [REVISION]}
    command.downgrade(environment(sqlite_url), "base")
    assert tables(sqlite_url) == {"sa_doclock_version": []}


def test_the_applications_own_version_table_is_left_alone(
    environment: Environment, sqlite_url: str
) -> None:
    engine = create_engine(sqlite_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('cafe')"))
    command.upgrade(environment(sqlite_url), "head")
    assert tables(sqlite_url) == {
        "alembic_version": ["cafe"],
        "sa_doclock_version": [REVISION],
    }


def test_on_every_real_database(environment: Environment, database: Database) -> None:
    """This is the only test that uses a SQL Server, if one is configured."""
    versions = Table("sa_doclock_version", MetaData(), Column("version_num", String(32)))
    database.create(versions.metadata)  # dropped when the test ends
    versions.drop(database.engine())
    command.upgrade(environment(database.url), "head")
    with database.engine().connect() as connection:
        assert list(connection.scalars(select(versions))) == [REVISION]
        if database.name == "mssql":
            asked = "SELECT snapshot_isolation_state FROM sys.databases WHERE name = DB_NAME()"
            assert connection.scalar(text(asked)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_command_line_works_from_anywhere(
    tmp_path: Path, sqlite_url: str, *, elsewhere: bool
) -> None:
    cwd = tmp_path if elsewhere else ROOT
    done = alembic("-x", f"url={sqlite_url}", "upgrade", "head", cwd=cwd)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"Running upgrade  -> {REVISION}" in done.stderr
    assert tables(sqlite_url) == {"sa_doclock_version": [REVISION]}


@pytest.mark.slow
def test_the_url_may_come_from_the_environment(sqlite_url: str) -> None:
    assert alembic("upgrade", "head", url=sqlite_url).returncode == 0
    assert tables(sqlite_url) == {"sa_doclock_version": [REVISION]}
    assert alembic("current", url=sqlite_url).stdout.split() == [REVISION, "(head)"]


@pytest.mark.parametrize("arguments", [(), ("-x", "url="), ("-x", "url=nonsense")])
@pytest.mark.parametrize("mode", [(), ("--sql",)])
def test_without_a_url_it_says_how_to_give_one(
    arguments: tuple[str, ...], mode: tuple[str, ...], fresh: FreshProcesses
) -> None:
    done = alembic_in(fresh, *arguments, "upgrade", "head", *mode)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert "which database?" in done.stderr + done.stdout
    assert "SA_DOCLOCK_URL" in done.stderr + done.stdout


@pytest.mark.slow
def test_the_script_for_sql_server_needs_no_driver_and_goes_to_standard_output() -> None:
    done = alembic("-x", "url=mssql+pyodbc://", "upgrade", "head", "--sql")
    assert done.returncode == 0
    assert "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON;" in done.stdout
    assert done.stdout.startswith("BEGIN TRANSACTION;")


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_the_script_for_another_database_records_the_revision_alone(
    dialect: str, fresh: FreshProcesses
) -> None:
    done = alembic_in(fresh, "-x", f"url={dialect}://", "upgrade", "head", "--sql")
    assert done.returncode == 0
    assert "ALTER" not in done.stdout
    assert f"VALUES ('{REVISION}')" in done.stdout


def test_on_the_scripted_server_the_revision_is_recorded_after_the_change(
    environment: Environment,
) -> None:
    server = Server()
    with serving(server):
        command.upgrade(environment(URL), "head")
        assert (server.snapshot, server.versions) == (1, [REVISION])
        command.downgrade(environment(URL), "base")
    assert (server.snapshot, server.versions) == (0, [])
    assert [sent.autocommit for sent in server.sent if "ALTER DATABASE" in sent.sql] == [True] * 2


@pytest.mark.parametrize(
    "server",
    [
        Server(lands_on=3),
        Server(snapshot=2),
        Server(name="master"),
        Server(refuses={"ALTER DATABASE": refusal(5061, "a lock could not be placed")}),
    ],
    ids=["in transition afterwards", "going OFF", "master", "5061"],
)
def test_a_change_that_failed_is_not_recorded(environment: Environment, server: Server) -> None:
    with serving(server), pytest.raises(CommandError):
        command.upgrade(environment(URL), "head")
    assert server.versions in (None, [])


def test_copied_into_an_existing_history_as_the_docs_say(tmp_path: Path, sqlite_url: str) -> None:
    command.init(Config(tmp_path / "alembic.ini", stdout=io.StringIO()), str(tmp_path / "theirs"))
    config = Config(tmp_path / "alembic.ini")
    config.set_main_option("sqlalchemy.url", sqlite_url)
    command.revision(config, "their own", rev_id="theirs1")
    ours = "0001_enable_snapshot_isolation.py"
    copied = tmp_path / "theirs" / "versions" / ours
    shutil.copy(MIGRATIONS / "versions" / ours, copied)
    code = copied.read_text()
    assert code.count("down_revision = None") == 1
    copied.write_text(code.replace("down_revision = None", 'down_revision = "theirs1"'))
    command.upgrade(config, "head")
    assert tables(sqlite_url) == {"alembic_version": [REVISION]}
    command.downgrade(config, "base")
    assert tables(sqlite_url) == {"alembic_version": []}


def test_alembic_ini_leaves_other_loggers_enabled(sqlite_url: str) -> None:
    log = logging.getLogger("an.application")
    options = argparse.Namespace(x=[f"url={sqlite_url}"])
    command.upgrade(Config(MIGRATIONS / "alembic.ini", cmd_opts=options), "head")
    assert not log.disabled


# --------------------------------------------------------------------------------------------------
# Alembic's entry point: autogenerate finds a check-out table without an import in env.py.

HAS_PLUGINS = tuple(map(int, alembic_plugin.__version__.split(".")[:2])) >= (1, 18)

#: Autogenerate's output for a check-out table: new, existing, and existing without its metadata.
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
    """Run autogenerate in a process that sees sa_doclock's entry point from pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text()
    group = r'^\[project\.entry-points\."alembic\.plugins"\]\n"(.+)" = "(.+)"$'
    ((name, module),) = re.findall(group, project, re.MULTILINE)
    info = tmp_path / "sa_doclock-0.1.0.dist-info"  # hides an installed one later on the path
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
