"""tests/README.md has a line for each folder, no combination is left to nobody, slow tests are listed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from lab.running.slow import UnmarkedSlowTests
from tests.docs.pages import ROOT, text_of
from tests.integration.questions.conftest import pytest_collection_modifyitems as leave_out

TESTS = ROOT / "tests"


def test_the_readme_lists_the_folders() -> None:
    tests, lab = text_of("tests/README.md").split("| Folder of `lab` |")
    listed = re.findall(r"^\| `([\w/]+)` \| ", tests, re.MULTILINE)
    of_the_lab = re.findall(r"^\| `([\w/]+)` \| ", lab, re.MULTILINE)
    assert of_the_lab == sorted(path.parent.name for path in (ROOT / "lab").glob("*/__init__.py"))
    found = {
        path.parent.relative_to(TESTS).as_posix()
        for depth in ("*", "*/*")
        for path in TESTS.glob(f"{depth}/__init__.py")
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


#: Packages whose essentials are elsewhere, or that a lock does not need.
NOT_QUICK = {
    *("alembic", "cli", "forks", "lock_errors", "mappings", "mistakes"),
    *("poolers", "questions", "telemetry", "testing"),
}


def test_the_marker_quick_is_for_whole_files_and_each_package_has_some() -> None:
    packages = {path.parent.name for path in (TESTS / "integration").glob("*/__init__.py")}
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
    """pytest calls the hook of a folder with the tests of all."""
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
