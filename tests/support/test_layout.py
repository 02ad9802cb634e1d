"""The tests' own layout and tools: the folders of the README, tables of rows, clones, fresh processes."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy

from lab.running.slow import UnmarkedSlowTests
from tests.docs.pages import ROOT, text_of
from tests.integration.questions.conftest import pytest_collection_modifyitems as leave_out
from tests.support.fresh_process import Ended, FreshProcesses
from tests.support.rows import rows
from tests.support.tracing import PACKAGE

# --------------------------------------------------------------------------------------------------
# tests/README.md lists each folder, every combination has an owner, slow tests are listed.

TESTS = ROOT / "tests"


def test_the_readme_lists_the_folders() -> None:
    tests, lab = text_of("tests/README.md").split("| Folder of `lab` |")
    listed = re.findall(r"^\| `([\w/]+)` \| ", tests, re.MULTILINE)
    of_the_lab = re.findall(r"^\| `([\w/]+)` \| ", lab, re.MULTILINE)
    assert of_the_lab == sorted(path.parent.name for path in (ROOT / "lab").glob("*/__init__.py"))
    found = {
        path.parent.relative_to(TESTS).as_posix()
        for depth in ("*", "*/*")
        for path in TESTS.glob(f"{depth}/*.py")
    }
    assert listed == sorted(found)


def test_two_pages_say_the_same_of_the_time_of_make_test() -> None:
    words = r"^make test .* (\w+) minutes on 2 quiet cores$"
    (number,) = re.findall(words, text_of("README.md"), re.MULTILINE)
    row = r"^\| `make test` \| .* \| (.+) \|$"
    assert re.findall(row, text_of("CONTRIBUTING.md"), re.MULTILINE) == [f"{number} minutes"]


def test_every_combination_runs_in_make_test_all_and_in_the_public_workflow() -> None:
    recipes = dict(re.findall(r"^([a-z-]+): .*\n((?:\t.*\n)+)", text_of("Makefile"), re.MULTILINE))
    assert {name for name, recipe in recipes.items() if "--pairwise" in recipe} == {
        "test",
        "test-quick",
    }
    assert "--pairwise" not in text_of(".github/workflows/ci.yml")


#: Packages whose essential tests are elsewhere, or that a lock does not need.
NOT_QUICK = {
    *("alembic", "cli", "forks", "lock_errors", "mappings", "mistakes"),
    *("poolers", "questions", "telemetry", "testing"),
}


def test_the_marker_quick_is_for_whole_files_and_each_package_has_some() -> None:
    packages = {path.parent.name for path in (TESTS / "integration").glob("*/*.py")}
    for path in (TESTS / "integration").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "pytest.mark.quick" in text:
            assert re.search(r"^pytestmark = (\[\s*)?pytest\.mark\.quick\b", text, re.MULTILINE), (
                path
            )
            packages.discard(path.relative_to(TESTS).parts[1])
    assert packages == NOT_QUICK
    assert "--include='test_*.py' pytest.mark.quick tests/integration" in text_of("Makefile")


def test_a_folder_leaves_out_its_own_tests_alone() -> None:
    """pytest calls the hook of a folder with all tests."""
    params = {"database": "pgbouncer-session", "driver": "psycopg"}
    own, others = (
        SimpleNamespace(nodeid=f"tests/{path}", callspec=SimpleNamespace(params=params))
        for path in ("integration/questions/test_a.py", "integration/poolers/test_a.py")
    )
    items: list[Any] = [own, others]
    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=dict))
    leave_out(config, items)
    assert items == [others]


def test_a_slow_test_without_its_mark_is_listed() -> None:
    plugin = UnmarkedSlowTests(5)
    for name, mark, seconds in (
        ("marked", "slow", 9.0),
        ("fast", "", 4.9),
        ("slow", "", 5.1),
        ("slower", "", 6.0),
    ):
        report = pytest.TestReport(
            name, (name, 1, name), {mark: 1}, "passed", None, "call", duration=seconds
        )
        plugin.pytest_runtest_logreport(report)
    lines: list[str] = []
    terminal: Any = SimpleNamespace(section=lines.append, write_line=lines.append)
    plugin.pytest_terminal_summary(terminal)
    assert lines == ["slow, and not marked so", "6.0 s  slower", "5.1 s  slow"]


# --------------------------------------------------------------------------------------------------
# rows() runs each row; the failure names the failed rows.


def test_all_rows_run_and_those_that_failed_are_named() -> None:
    seen = []

    @rows("number, other", [(1, 1), pytest.param(2, 3, id="two"), (10**5000, 0), (4, 4)])
    def check(number: int, other: int) -> None:
        seen.append(number)
        assert number == other, "not the same"

    reported = (
        r"2 of 4 rows have failed:\n2, 3: AssertionError: not the same.*\na int \(.*, 0: Assert"
    )
    with pytest.raises(AssertionError, match=re.compile(reported, re.DOTALL)) as caught:
        check()  # type: ignore[call-arg]
    assert seen == [1, 2, 10**5000, 4]
    assert "not the same" in str(caught.value.__cause__)


def test_a_missing_exception_is_a_failure_of_its_row() -> None:
    @rows("value", ["1", "x"], ids=["a number", "no number"])
    def check(value: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(value)

    with pytest.raises(
        AssertionError, match=r"1 of 2 rows have failed:\na number: Failed: DID NOT"
    ):
        check()  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [int, float])
@rows("text", ["1", "2"])
@rows("add", [1, 2])
def test_the_rest_of_the_arguments_is_as_ever(
    kind: type[int], text: str, add: int, request: pytest.FixtureRequest
) -> None:
    assert kind(text) + add > 1
    assert [*inspect.signature(request.function).parameters] == ["kind", "request"]


# --------------------------------------------------------------------------------------------------
# The tests pass in a clone with any name, in any folder.

#: The clone has the package's name; the path contains a space, a hidden folder, and the names of
#: other folders.
CLONE = Path(".hidden", "my site-packages", "site-packages", "tests", "sa_doclock")

#: Tests that distinguish the program's files from ours, or from SQLAlchemy's.
TESTS_ANY_CLONE = (
    "tests/docs/test_examples.py",
    "tests/integration/locking/transactions/test_call_budget.py",
    "tests/unit/test_linear.py",
    "tests/unit/test_guard.py",
    "tests/integration/guard/test_sentence_of_read.py",
)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_clone_named_as_the_package(tmp_path: Path) -> None:
    if PACKAGE.parent != ROOT:
        pytest.skip("the tests run on an installed package, whose sources are not here")
    clone = tmp_path / CLONE
    hidden = shutil.ignore_patterns(".*", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=hidden)
    # In a clone with a virtual environment, the path of the environment contains the clone's name too.
    (clone / "sqlalchemy").symlink_to(Path(sqlalchemy.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--databases=sqlite", "--pairwise", *TESTS_ANY_CLONE],
        cwd=clone,
        env={
            name: value for name, value in os.environ.items() if name != "SA_DOCLOCK_TEST_REQUIRE"
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout


# --------------------------------------------------------------------------------------------------
# Processes forked from one that imported SQLAlchemy: each starts without our modules or another's.

LOADED = """
import sys
print("sqlalchemy.orm" in sys.modules, any(name.startswith("sa_doclock") for name in sys.modules))
import sa_doclock
"""


def test_each_has_sqlalchemy_and_nothing_of_those_before(fresh: FreshProcesses) -> None:
    assert [fresh.run(LOADED) for _ in range(2)] == [Ended(0, "True False\n", "")] * 2


def test_the_exit_status_is_that_of_the_code(fresh: FreshProcesses) -> None:
    assert fresh.run("import sys; sys.exit(3)") == Ended(3, "", "")
    assert fresh.run("import sys; sys.exit()") == Ended(0, "", "")
    assert fresh.run("import sys; sys.exit('why')") == Ended(1, "", "why\n")
    failed = fresh.run("1 / 0")
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
