"""SA_DOCLOCK_TEST_REQUIRE: what it names and this machine does not have is an error, never a skipped test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.running.workers import check_required

ROOT = Path(__file__).parents[2]
ABSENT = ("standby", "galera", "group-replication", "pgbouncer", "pgpool")

#: One test, or a few, for each; the second for a standby is one of the locking suite.
TESTS = (
    "tests/reliability/failover",
    "tests/reliability/cluster/test_named_locks.py",
    "tests/integration/poolers/test_every_pooler.py::test_asyncpg_with_the_settings_of_the_page",
    "tests/integration/locking/hot_standby/test_hot_standby_document.py",
)


def run_without_them(required: str) -> str:
    databases = "--databases=postgresql,mysql,mariadb"
    words = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.support.absent", databases, *TESTS]
    environment = {**os.environ, "SA_DOCLOCK_TEST_REQUIRE": required}
    return subprocess.run(
        words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
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
    monkeypatch.chdir(ROOT)
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
        cwd=ROOT,
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
