"""CI, and anyone who starts the servers of docker-compose.yml by hand, gives the tests these URLs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.running.workers import check_required
from lab.servers import NAMES, UnavailableError, docker, url_variable
from lab.servers.docker import IMAGES, URLS
from lab.servers.mariadb import scripts_of

ROOT = Path(__file__).resolve().parents[2]


def _lines_of(path: str) -> list[str]:
    return [line.strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_the_compose_file_tells_how_to_reach_what_it_starts(name: str) -> None:
    lines = _lines_of("docker-compose.yml")
    assert f"#   export {url_variable(name)}='{URLS[name]}'" in lines
    assert {f"{name}:", f"{name}: &{name}"} & set(lines)
    assert f"image: {IMAGES[name][0]}" in lines


class Docker:
    """A container engine without images, in place of the program.

    :ivar ran: the commands that would have changed something.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.said: list[str] = []
        monkeypatch.setattr(docker, "_why_not", lambda: None)
        monkeypatch.setattr(docker, "_succeeds", lambda _: False)
        monkeypatch.setattr(docker, "run", self.run)
        monkeypatch.setattr(docker, "say", self.said.append)

    def run(self, command: list[str], **_: object) -> str:
        words = " ".join(command).partition("docker-compose.yml ")[2]
        self.ran += [words] if words.startswith(("pull", "up")) else []
        if words.startswith("up"):
            msg = "not here"
            raise UnavailableError(msg)
        return ""


def test_an_image_is_announced_before_it_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Docker(monkeypatch)
    with pytest.raises(UnavailableError, match="not here"):
        docker.start("mysql")
    assert engine.said == ["Downloading the image mysql:9, by Docker: some hundred MB, GPL-2.0"]
    assert engine.ran == ["pull --quiet mysql", "up --detach --wait mysql"]


def test_sql_server_is_no_free_software(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Docker(monkeypatch)
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")
    with pytest.raises(UnavailableError, match="PROPRIETARY=no, and SQL Server is proprietary"):
        docker.start("mssql")
    assert (engine.said, engine.ran) == ([], [])


def test_ci_tests_every_database_and_gives_the_url_of_sql_server() -> None:
    lines = _lines_of(".github/workflows/ci.yml")
    others = [name for name in NAMES if name != "mssql"]
    assert f"database: [{', '.join(others)}, sqlite]" in lines
    assert 'release: ["2019", "2022", "2025"]' in lines
    assert 'versions: ["OFF", "ON"] # of READ_COMMITTED_SNAPSHOT' in lines
    assert "driver: [odbc18, pymssql]" in lines
    assert f"url: {URLS['mssql']}" in lines
    assert "run: make mssql-proof" in lines


@pytest.mark.parametrize("release", ["2019", "2022", "2025"])
def test_each_release_of_sql_server_has_a_profile(release: str) -> None:
    lines = _lines_of("docker-compose.yml")
    assert f"mssql-{release}:" in lines
    assert f'profiles: ["mssql-{release}"]' in lines


@pytest.mark.parametrize(
    "reported", ["lc-messages-dir  (No default value)", "", "lc-messages-dir  /no"]
)
def test_the_scripts_of_mariadb_are_found_beside_the_program(reported: str, tmp_path: Path) -> None:
    share = tmp_path / "share" / "mysql"
    share.mkdir(parents=True)
    with pytest.raises(UnavailableError, match=r"the SQL scripts of .*mariadbd are not found"):
        scripts_of(tmp_path / "sbin" / "mariadbd", reported)
    (share / "mariadb_system_tables.sql").touch()
    assert scripts_of(tmp_path / "sbin" / "mariadbd", reported) == share


def test_the_scripts_of_mariadb_are_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "mysql_system_tables.sql").touch()
    reported = f"a\nlc-messages-dir    {tmp_path}\nlog-basename  (No default value)"
    assert scripts_of(Path("/usr/sbin/mariadbd"), reported) == tmp_path


# --------------------------------------------------------------------------------------------------
# SA_DOCLOCK_TEST_REQUIRE: a named item that the machine lacks is an error, not a skipped test.

ROOT_REQUIRED = Path(__file__).parents[2]
ABSENT = ("standby", "galera", "group-replication", "pgbouncer", "pgpool")

#: One or a few tests for each; the second for a standby belongs to the locking suite.
TESTS = (
    "tests/reliability/failover",
    "tests/reliability/cluster/test_aborted_holder.py",
    "tests/integration/poolers/test_every_pooler.py::test_asyncpg_with_the_settings_of_the_page",
    "tests/integration/locking/test_hot_standby.py",
)


def run_without_them(required: str) -> str:
    databases = "--databases=postgresql,mysql,mariadb"
    words = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.support.absent", databases, *TESTS]
    environment = {**os.environ, "SA_DOCLOCK_TEST_REQUIRE": required}
    return subprocess.run(
        words, cwd=ROOT_REQUIRED, env=environment, check=False, capture_output=True, text=True
    ).stdout


def ended(output: str, how: str) -> int:
    found = re.search(rf"(\d+) {how}", output.splitlines()[-1])
    return 0 if found is None else int(found[1])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.usefixtures("database")
def test_each_that_is_named_and_missing_is_an_error() -> None:
    output = run_without_them(", ".join(ABSENT))
    for name in ABSENT:
        reported = f"SA_DOCLOCK_TEST_REQUIRE names {name}, but there is none: nothing is installed"
        assert reported in output
    assert ended(output, "skipped") == 0
    assert ended(output, "passed") == 0
    assert ended(output, "errors?") + ended(output, "failed") > len(ABSENT)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.usefixtures("database")
def test_those_that_are_not_named_are_skipped_loudly() -> None:
    output = run_without_them("")
    assert ended(output, "errors?") == ended(output, "failed") == ended(output, "passed") == 0
    for what in (
        *("CLUSTER galera", "CLUSTER group-replication", "POOLER pgbouncer", "POOLER pgpool"),
        *("FAILOVER, galera", "FAILOVER, group-replication", "FAILOVER, standby", "STANDBY"),
    ):
        assert f"SKIPPED {what}: nothing is installed" in output


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_database_that_cannot_be_had_here_is_left_out_loudly_or_an_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT_REQUIRED)
    monkeypatch.delenv("SA_DOCLOCK_TEST_MSSQL_URL", raising=False)
    monkeypatch.setenv("SA_DOCLOCK_TEST_PROPRIETARY", "no")  # where there is Docker, too
    words = ["-q", "--databases=sqlite,mssql", "tests/lab/test_harness.py", "-k", "comes_out"]
    loud = "SKIPPED DATABASE mssql: SA_DOCLOCK_TEST_MSSQL_URL is not set; "
    monkeypatch.setenv("SA_DOCLOCK_TEST_REQUIRE", "sqlite")
    left_out = pytester.runpytest_subprocess("-p", "no:randomly", *words)
    assert left_out.ret is pytest.ExitCode.OK
    assert loud in left_out.stdout.str()
    assert "skipped" not in left_out.stdout.str()
    monkeypatch.setenv("SA_DOCLOCK_TEST_REQUIRE", "sqlite,mssql")
    required = pytester.runpytest_subprocess(*words)
    assert required.ret is pytest.ExitCode.USAGE_ERROR
    required.stderr.fnmatch_lines("*SA_DOCLOCK_TEST_REQUIRE names mssql, but there is none: *")


WIRE = "tests/sql/tds/test_isolation.py"
PARSED = "tests/sql/tsql/test_sent.py"


def run_without_proprietary(required: str) -> str:
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "--databases=sqlite",
        "-m not slow",
        WIRE,
        PARSED,
    ]
    environment = {"SA_DOCLOCK_TEST_REQUIRE": required, "SA_DOCLOCK_TEST_PROPRIETARY": "no"}
    return subprocess.run(
        words,
        cwd=ROOT_REQUIRED,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_is_proprietary_and_not_wanted_is_missing() -> None:
    output = run_without_proprietary("")
    assert ended(output, "errors?") == ended(output, "failed") == 0
    assert ended(output, "skipped") > 0
    why = "SA_DOCLOCK_TEST_PROPRIETARY=no, and Microsoft's"
    reported = [line for line in output.splitlines() if line.startswith("SKIPPED ") and why in line]
    loud = [line.partition(": ")[0] for line in reported if "[" not in line]
    assert sorted(loud) == ["SKIPPED DRIVER odbc18 OF SQL SERVER", "SKIPPED PARSER OF SQL SERVER"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["tsql-parser", "odbc18"])
def test_what_is_proprietary_and_both_named_and_not_wanted_is_an_error(name: str) -> None:
    output = run_without_proprietary(name)
    why = "SA_DOCLOCK_TEST_PROPRIETARY=no"
    assert f"SA_DOCLOCK_TEST_REQUIRE names {name}, but there is none: {why}" in output
    assert ended(output, "errors?") > 0


@pytest.mark.parametrize("named", ["galera", "mysql, galera", " galera ,mysql"])
def test_the_names_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("SA_DOCLOCK_TEST_REQUIRE", named)
    with pytest.raises(pytest.fail.Exception, match="names galera, but there is none: no provider"):
        check_required("galera", "no provider")
    check_required("standby", "no binaries")
