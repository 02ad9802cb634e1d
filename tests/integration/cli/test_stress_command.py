"""``sa-doclock stress``: exit statuses, output for people and for programs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from sa_doclock.tools.cli.app import app
from sa_doclock.tools.cli.database import _without_secret
from sa_doclock.tools.cli.workload.run_plan import Plan
from sa_doclock.tools.cli.workload.tables import PREFIX
from tests.integration.cli.conftest import ROOT, Process
from tests.support.databases import Database

pytestmark = pytest.mark.each_value

Run = Callable[..., Process]
SMALL = ("--documents", "1", "--threads", "8", "--iterations", "10", "--seed", "1")


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["stress", *words], catch_exceptions=False)
    return result.exit_code, result.output


def tables_in(url: str) -> list[str]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    return [name for name in sa.inspect(engine).get_table_names() if name.startswith(PREFIX)]


def test_a_clean_run_ends_with_0_and_leaves_nothing_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    status, output = invoke("--url", url, *SMALL)
    assert status == 0, output
    for words in ("80 of 80", "UPSERT", "DELETE", "LOAD", "p50 / p99", "deadlocks", "retries"):
        assert words in output
    assert "OK: 0 inconsistencies, 0 errors" in output
    assert tables_in(url) == []


def test_the_url_can_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.db"
    monkeypatch.setenv("SA_DOCLOCK_URL", f"sqlite:///{path}")
    status, output = invoke("--json", *SMALL)
    assert (status, json.loads(output)["database"]["url"]) == (0, f"sqlite:///{path}")
    assert path.exists()


@pytest.mark.parametrize("words", [(), ("--read", "snapshot"), ("--details-only",)])
def test_documents_can_be_read_whole(words: tuple[str, ...]) -> None:
    status, output = invoke("--whole", "--json", *words, *SMALL)
    assert status == 0, output
    assert json.loads(output)["settings"]["whole"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_without_locks_it_ends_with_1() -> None:
    status, output = invoke("--no-locks", "--details-only", "--documents", "1", "--seed", "1")
    assert status == 1, output
    assert "NOT OK, as can be expected without locks" in output
    assert "MOVE" in output
    assert "UPSERT" not in output


def test_json_is_one_object_on_stdout(sa_doclock: Run) -> None:
    process = sa_doclock("stress", "--json", "--read", "snapshot", *SMALL)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    reported: dict[str, Any] = json.loads(process.stdout)
    assert reported["settings"] == {
        "documents": 1,
        "threads": 8,
        "iterations": 10,
        "locks": True,
        "details_only": False,
        "read": "SnapshotRead",
        "whole": False,
        "seed": 1,
    }
    assert reported["database"]["product"] == "sqlite"
    assert reported["sqlalchemy"] == sa.__version__
    assert sum(operation["count"] for operation in reported["operations"].values()) == 80
    for operation in reported["operations"].values():
        waits = [operation[f"wait_{which}_ms"] for which in ("p50", "p99", "max")]
        assert waits == sorted(waits)
    nothing = {"count": 0, "broken_reads": 0, "stale_reads": 0, "broken_documents": []}
    assert reported["inconsistencies"] == nothing
    assert reported["errors"] == {"count": 0, "kinds": {}}
    assert (reported["deadlocks"], reported["retries"]) == (0, 0)
    assert (reported["ok"], reported["interrupted"]) == (True, False)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_json_of_what_went_wrong(sa_doclock: Run) -> None:
    words = ("--no-locks", "--details-only", "--documents", "1", "--seed", "1")
    process = sa_doclock("stress", "--json", *words)
    assert process.returncode == 1, process.stderr
    reported = json.loads(process.stdout)
    found = reported["inconsistencies"]
    assert not reported["ok"]
    assert found["count"] == found["broken_reads"] + len(found["broken_documents"]) > 0
    assert found["stale_reads"] is None  # without locks, stale reads cannot be detected
    for broken in found["broken_documents"]:
        assert broken.keys() == {"number", "total", "sum_of_details"}


def test_the_seed_that_was_chosen_is_reported() -> None:
    _, first = invoke("--json", "--threads", "1", "--iterations", "1")
    _, second = invoke("--json", "--threads", "1", "--iterations", "1")
    assert json.loads(first)["settings"]["seed"] != json.loads(second)["settings"]["seed"]


def test_it_runs_on_every_database_and_shows_no_password(database: Database) -> None:
    status, output = invoke("--url", database.url, *SMALL)
    assert status == 0, output
    password = sa.make_url(database.url).password
    assert password is None or str(password) not in output
    assert database.name in output


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("", "is not a database URL"),
        ("orders.db", "is not a database URL"),
        ("postgresql://doclock:secret@host:secret/db", "is not a database URL"),
        ("nosuch://host/db", "knows no database or driver 'nosuch'"),
        ("sqlite://", "cannot share an in-memory database"),
        ("sqlite:////no/such/folder/orders.db", "unable to open database file"),
        ("sqlite+aiosqlite:///orders.db", "is a driver for asyncio"),
        ("postgresql+psycopg2://u:secret@host/db", "pip install 'sa-doclock[postgresql]'"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/db", "cannot connect to postgresql+psycopg"),
        ("mysql+pymysql://u:secret@127.0.0.1:1/db", "cannot connect to mysql+pymysql"),
    ],
)
@pytest.mark.parametrize("command", ["stress", "demo"])
def test_a_bad_url_is_reported_in_one_sentence(
    command: str, url: str, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)  # as if not installed
    result = CliRunner().invoke(app, [command, "--url", url], catch_exceptions=False)
    assert result.exit_code == 2
    assert reported in result.output
    assert "Traceback" not in result.output
    assert "secret" not in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("mysql+mysqldb://u:secret@host/db", "write mysql+pymysql:// in the URL"),
        ("postgresql+psycopg2://u:secret@host/db", "write postgresql+psycopg:// in the URL"),
        ("mssql+pyodbc://u:secret@host/db", ": pip install 'sa-doclock[mssql]'\n"),
    ],
)
def test_what_an_extra_installs_is_reported_as_it_is(
    url: str, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in ("MySQLdb", "psycopg2", "pyodbc"):
        monkeypatch.setitem(sys.modules, driver, None)  # as if not installed
    status, output = invoke("--url", url)
    assert (status, reported in output) == (2, True), output


@pytest.mark.parametrize("command", ["demo", "stress", "waits", "doctor"])
def test_each_command_takes_the_url_of_the_environment_and_says_so(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql+psycopg://u:secret@127.0.0.1:1/db"
    reported = CliRunner().invoke(app, [command, "--help"], env={"SA_DOCLOCK_URL": url}).output
    assert "[env var: SA_DOCLOCK_URL" in reported
    assert "secret" not in reported
    monkeypatch.setenv("SA_DOCLOCK_URL", url)
    result = CliRunner().invoke(app, [command], catch_exceptions=False)
    assert result.exit_code == 2
    assert "cannot connect to postgresql+psycopg://u:***@127.0.0.1:1/db: " in result.output
    assert "secret" not in result.output
    assert len(result.output.splitlines()) == 1


def test_the_old_name_of_postgresql_is_answered_with_the_new_one() -> None:
    status, output = invoke("--url", "postgres://u:secret@host/db")
    assert (status, "write postgresql+psycopg://" in output) == (2, True), output


def test_a_short_password_masks_no_letters_of_words() -> None:
    status, output = invoke("--url", "postgresql+psycopg://u:p@127.0.0.1:1/db")
    assert status == 2
    assert "psycopg.OperationalError" in output
    assert output.count("***") == 1  # in the URL


def test_a_password_in_the_text_of_an_error_is_masked(tmp_path: Path) -> None:
    url = sa.make_url(f"sqlite:///{tmp_path}/no/orders.db").set(password="p@$s")
    error = RuntimeError("the password p@$s is wrong (p@$s, p@$sword)")
    assert _without_secret(error, url) == "the password *** is wrong (***, p@$sword)"


@pytest.mark.parametrize(
    "words",
    [
        ("--threads", "0"),
        ("--documents", "0"),
        ("--iterations", "-1"),
        ("--read", "dirty"),
        ("--seed", "many"),
        ("--nonsense",),
        ("--url",),
    ],
)
def test_bad_options_end_with_2(words: tuple[str, ...]) -> None:
    status, output = invoke(*words)
    assert status == 2
    assert "Traceback" not in output


def test_a_database_that_may_not_be_written_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool).connect().close()
    url = f"sqlite:///file:{path}?mode=ro&uri=true"
    status, output = invoke("--url", url, *SMALL)
    assert status == 2
    assert "cannot create the table doclock_stress_doc_" in output


def test_a_lock_that_cannot_be_had_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sa_doclock import LockNotSupported  # noqa: PLC0415
    from sa_doclock.tools.cli import stress  # noqa: PLC0415

    def refuse(*_: object) -> None:
        raise LockNotSupported("run the migration first")

    monkeypatch.setattr(stress, "check_locks", refuse)
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    status, output = invoke("--url", url, *SMALL)
    assert status == 2
    assert "run the migration first" in output
    assert tables_in(url) == []


def test_an_interruption_that_a_failed_assertion_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sa_doclock.tools.cli import stress  # noqa: PLC0415

    def interrupt(*_: object) -> None:
        ended = False
        try:
            raise KeyboardInterrupt
        finally:
            assert ended  # like SQLAlchemy's commit()

    monkeypatch.setattr(stress, "check_locks", interrupt)
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    status, output = invoke("--url", url, *SMALL)
    assert status == 130
    assert "sa-doclock: interrupted" in output
    assert tables_in(url) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a process there cannot be asked to end")
@pytest.mark.parametrize("when", ["created", "at work"])
def test_a_run_that_is_asked_to_end_drops_its_tables(tmp_path: Path, when: str) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    command = [sys.executable, "-m", "sa_doclock", "stress", "--url", url]
    with subprocess.Popen(
        [*command, "--json", "--threads", "2", "--iterations", "1000000", "--seed", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert wait_for(STAGES[when], url, process)
        process.send_signal(signal.SIGTERM)
        try:
            output, complaint = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            # Python ignores what a signal handler raises within __del__ or a weak reference's
            # callback: https://docs.python.org/3/reference/datamodel.html#object.__del__
            process.send_signal(signal.SIGTERM)
            output, complaint = process.communicate(timeout=30)
    # A shell shows both as 130.  If the signal arrives within exec() of a text, as for a dataclass
    # being imported, Python ends itself by SIGINT, however the program handled the interruption.
    assert process.returncode in (130, -signal.SIGINT), complaint
    assert tables_in(url) == []
    if when == "created" and not output:
        # Before any output; SQLAlchemy logs the interruption of a connection's reset.
        assert complaint.endswith("sa-doclock: interrupted\n")
        return
    reported = json.loads(output)
    assert reported["interrupted"]
    assert reported["errors"]["count"] == reported["inconsistencies"]["count"] == 0, reported


def has_tables(engine: sa.Engine) -> bool:
    return any("_doc_" in name for name in sa.inspect(engine).get_table_names())


def has_changed_documents(engine: sa.Engine) -> bool:
    """Return whether the documents differ from those that a run with the seed 1 creates."""
    if not has_tables(engine):
        return False
    inspector = sa.inspect(engine)
    (name,) = [name for name in inspector.get_table_names() if "_doc_" in name]
    first = {sum(details.values()) for details in Plan(seed=1).first_states().values()}
    with engine.connect() as connection:
        totals = set(connection.scalars(sa.text(f"SELECT total FROM {name}")))
    return not totals <= first


STAGES = {"created": has_tables, "at work": has_changed_documents}


def wait_for(stage: Callable[[sa.Engine], bool], url: str, process: subprocess.Popen[str]) -> bool:
    """Return True when the run has come this far, False if it ended."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    while process.poll() is None:
        if stage(engine):
            return True
    return False
