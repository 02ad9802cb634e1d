"""No version is claimed that was not run: the README, pyproject.toml and check_database()."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from lab.versions.components import COMPONENTS
from lab.versions.result import Result, load
from lab.versions.table import in_words, release_of, releases, table
from sa_doclock.tools.doctor import mariadb, mysql, postgresql, sqlite
from tests.docs.pages import text_of
from tests.support.rows import rows

RESULTS = load()
PYPROJECT = text_of("pyproject.toml")
#: Packages of pyproject.toml that lock nothing, or that no server is here for.
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
    assert RESULTS  # the text of the page is compared with it by tests/docs/test_readme.py


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
    """By check_database(): tests/sql/test_doctor.py and tests/integration/doctor."""
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
