"""Every claimed version was run: in the README, pyproject.toml and check_database()."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from lab.compat import __main__ as compat
from lab.compat.differences import DIFFERENCES
from lab.programs.replay import file_of
from lab.programs.suites import SUITES
from lab.programs.table import read_results, read_verdicts, without_verdict
from lab.versions.components import COMPONENTS
from lab.versions.result import Result, load
from lab.versions.table import in_words, release_of, releases, table
from sa_doclock.dialects import mariadb, mysql
from sa_doclock.tools.doctor import postgresql, sqlite
from tests.docs.pages import text_of
from tests.support.rows import rows

RESULTS = load()
PYPROJECT = text_of("pyproject.toml")
#: Packages of pyproject.toml that lock nothing, or that have no server here.
NO_COMPONENTS = {"tenacity", "pyodbc", "alembic", "opentelemetry-api", "typer", "rich", "pytest"}


def oldest_allowed() -> dict[str, str]:
    """Return the oldest version of each package that pyproject.toml allows, extras included."""
    (text,) = re.findall(r"^dependencies = .*?^all = ", PYPROJECT, re.DOTALL | re.MULTILINE)
    found = dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)', text))
    return {name: version for name, version in found.items() if name not in NO_COMPONENTS}


@rows("result", RESULTS.values(), ids=RESULTS)
def test_nothing_has_failed(result: Result) -> None:
    assert result.failed == 0
    assert result.passed > 0


def test_the_table_has_a_row_for_each_component_that_was_run() -> None:
    assert len([*table()]) == len(RESULTS) + 2
    assert RESULTS  # tests/docs/test_readme.py compares the page's text with it


def test_each_python_of_the_classifiers_was_run() -> None:
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    ran = {
        ".".join(map(str, release_of(one)))
        for one in RESULTS.values()
        if one.product == "Python" and "free-threaded" not in one.version
    }
    assert claimed
    assert not {*claimed} - ran


def test_a_build_without_the_gil_is_claimed_if_it_was_run_and_only_then() -> None:
    ran = [one for one in RESULTS.values() if "free-threaded" in one.version and not one.failed]
    assert all("the GIL off" in one.tested_with for one in ran)
    claimed = re.findall(
        r'"Programming Language :: Python :: Free Threading :: ([^"]+)"', PYPROJECT
    )
    assert claimed == (["2 - Beta"] if ran else [])


def test_the_oldest_and_the_newest_of_each_driver_was_run() -> None:
    allowed = oldest_allowed()
    assert len(allowed) == 6
    for package, oldest in allowed.items():
        ran = sorted(
            numbers(one.version)
            for one in RESULTS.values()
            if one.product.lower() == package.lower()
        )
        assert ran[0][: len(numbers(oldest))] == numbers(oldest), package
        assert set(ran[0][len(numbers(oldest)) :]) <= {0}, package
        assert len(ran) > 1, package


@pytest.mark.parametrize(
    ("product", "checks", "oldest"),
    [
        ("PostgreSQL", postgresql, "_OLDEST"),
        ("MySQL", mysql, "HAS_MODIFIERS"),
        ("MariaDB", mariadb, "HAS_SKIP_LOCKED"),
        ("SQLite", sqlite, "_OLDEST"),
    ],
)
def test_what_is_older_is_reported(product: str, checks: ModuleType, oldest: str) -> None:
    """check_database() reports it: tests/sql/test_doctor.py and tests/integration/doctor."""
    assert getattr(checks, oldest)[:2] >= releases(product)[0]


def test_the_names_of_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    def result(product: str, version: str, failed: int = 0) -> Result:
        return Result(version, product, version, "", "", 1, failed, {})

    found = [result("PostgreSQL", one) for one in ("12.1", "13.2", "14.3")]
    found += [
        result("MySQL", "8.0.46"),
        result("MySQL", "8.4.8"),
        result("MySQL", "9.7.0", failed=1),
    ]
    monkeypatch.setattr("lab.versions.table.load", lambda: {one.version: one for one in found})
    assert in_words("PostgreSQL") == "12 to 14"
    assert in_words("MySQL") == "8.0, 8.4"
    assert in_words("SQLite") == "none"
    del found[1]
    assert in_words("PostgreSQL") == "12, 14"


def test_a_component_has_the_name_of_its_key() -> None:
    assert all(name == one.name for name, one in COMPONENTS.items())


def numbers(version: str) -> list[int]:
    return [*map(int, re.findall(r"\d+", version))]


# --------------------------------------------------------------------------------------------------
# The list of differences is short and gives reasons; test ids are compared without a database.

SUITE = compat.SUITES["sqlalchemy-2.1"]
LISTED = next(iter(DIFFERENCES))


def test_there_are_at_most_ten_each_with_a_reason() -> None:
    assert len(DIFFERENCES) <= 10
    assert all(DIFFERENCES.values())
    assert list(DIFFERENCES) == [compat.name_of(node) for node in DIFFERENCES]


@pytest.mark.parametrize(
    "node",
    [
        "test/orm/test_x.py::XTest_sqlite+pysqlite_3_40_1::test_y[a-b]",
        "test/orm/test_x.py::XTest_postgresql+psycopg_18_4::test_y",
        "test/orm/test_x.py::XTest::test_y[sqlite]",
    ],
)
def test_an_id_is_that_of_every_database(node: str) -> None:
    assert compat.name_of(node) == "test/orm/test_x.py::XTest::test_y"


def fake(
    monkeypatch: pytest.MonkeyPatch,
    ours: list[str],
    stock: list[str],
    ours_again: list[str] | None = None,
    *,
    collected: bool = True,
    passed: Sequence[str] = ("test/a.py::old",),
) -> None:
    """Replace the runs.

    :param ours_again: the failures on our sessions in the second run; None for the same.
    :param collected: False if pytest finds no test in a second run.
    """

    def run(
        _suite: Any, package: str, tests: Any, _workers: int, *, again: bool = False
    ) -> compat.Results:
        if not again:
            return compat.Results(frozenset(ours), frozenset(passed))
        if not collected:
            return compat.Results()
        fails = stock if not package else ours if ours_again is None else ours_again
        failed = frozenset(fails).intersection(tests)
        return compat.Results(failed, frozenset(tests) - failed)

    monkeypatch.setattr(compat, "run", run)


def test_what_fails_on_ours_alone_and_is_not_listed_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(monkeypatch, [*DIFFERENCES, "test/a.py::new", "test/a.py::broken"], ["test/a.py::broken"])
    assert compat.check("x", SUITE, (), 1) == [
        "x: fails on our sessions alone: test/a.py::new",
    ]


def test_what_fails_once_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, [*DIFFERENCES, "test/a.py::new"], [], ours_again=[])
    assert compat.check("x", SUITE, (), 1) == []


def test_what_is_listed_and_passes_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, [*DIFFERENCES][2:], [], passed=[LISTED])
    assert compat.check("x", SUITE, (), 1) == []
    reported = re.findall("listed as a difference, and has passed: (.*)", capsys.readouterr().out)
    assert reported == [LISTED]  # and not the second, which did not run


def test_a_run_in_which_nothing_passes_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "run", lambda *_: compat.Results(frozenset(DIFFERENCES)))
    assert compat.check("x", SUITE, (), 1) == ["x: no test has passed"]


def test_a_test_that_is_not_run_again_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, ["test/a.py::new"], [], collected=False)
    assert compat.check("x", SUITE, (), 1) == ["x: was not run again: test/a.py::new"]


def test_a_module_that_cannot_be_imported_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, ["test/a.py"], ["test/a.py"])
    assert compat.check("x", SUITE, (), 1) == ["x: cannot be imported: test/a.py"]


# --------------------------------------------------------------------------------------------------
# The verdicts on the audit's errors in public programs.

_LEAST_TRUE = 0.95


def test_every_error_has_a_verdict() -> None:
    results = read_results()
    assert results.keys() == SUITES.keys()
    assert [one for result in results.values() for one in without_verdict(result)] == []


def test_what_is_called_certain_is_true() -> None:
    verdicts = {(one.program, one.code, one.places): one.verdict for one in read_verdicts()}
    judged = Counter(
        verdicts[name, code, places]
        for name, result in read_results().items()
        for code, places in result.errors
    )
    assert judged[True] >= _LEAST_TRUE * judged.total()


def test_each_replay_has_shown_its_error() -> None:
    for name, result in read_results().items():
        assert bool(result.replayed) == file_of(name).exists()
        assert all(0 < wrong <= orders for wrong, orders in result.replayed)
