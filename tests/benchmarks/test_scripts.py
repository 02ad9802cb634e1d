"""Each script runs: its figures have names and values, its goals a figure or a reason."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

from benchmarks.__main__ import SCRIPTS
from benchmarks.goals import GOALS
from benchmarks.lab import report
from benchmarks.lab.figures import Findings
from tests.benchmarks.conftest import Run
from tests.support.databases import Database

ON_SQLITE = ("overhead", "documents", "stress", "details", "linear", "sessions", "guard")


def check(found: Findings, database: str) -> None:
    assert found.servers.keys() == {database}
    assert any(name.split(".")[1] == database for name in found.figures)
    for name, figure in found.figures.items():
        assert name.split(".")[0] == found.script
        assert math.isfinite(figure.value), name
        assert figure.low is None or figure.high is None or figure.low <= figure.high, name
    wrong = [name for name in found.figures if name.endswith((".errors", ".wrong_documents"))]
    assert [name for name in wrong if found.figures[name].value != 0] == []
    own = [goal for goal in GOALS if goal.figure.split(".")[0] == found.script]
    for verdict in report.verdicts([found], own):
        assert verdict.figure is not None or verdict.reason != report.NOT_MEASURED, verdict.goal


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ON_SQLITE)
def test_a_script_runs_on_sqlite(run: Run, tmp_path: Path, name: str) -> None:
    found = run(name, "sqlite", f"sqlite:///{tmp_path / 'benchmark.db'}")
    check(found, "sqlite")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("name", sorted({*SCRIPTS} - {*ON_SQLITE, "layers"}))
def test_a_script_runs_on_postgresql(run: Run, database: Database, name: str) -> None:
    check(run(name, "postgresql", database.url), "postgresql")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql")
def test_the_round_trips_are_those_that_the_driver_makes(run: Run, database: Database) -> None:
    found = run("layers", "postgresql", database.url)
    check(found, "postgresql")
    figures = found.figures

    def trips(way: str, operation: str) -> tuple[float, float]:
        group = f"layers.postgresql.{way}.{operation}"
        return figures[f"{group}.round_trips"].value, figures[f"{group}.held"].value

    assert (trips("raw", "update"), trips("raw", "load")) == ((6, 4), (4, 2))
    assert (trips("raw_pipelined", "update"), trips("raw_pipelined", "load")) == ((2, 1), (1, 0))
    assert trips("orm", "update") == (6, 4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_measures(name: str) -> None:
    first = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").split("\n\n")[0]
    assert first.startswith(("Measure ", "Compare "))
    assert first.endswith(".")


def test_a_database_that_is_not_there_is_a_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SA_DOCLOCK_TEST_MYSQL_URL", raising=False)
    found = run("stress", "mysql", "")
    assert found.figures == {}
    assert "SA_DOCLOCK_TEST_MYSQL_URL" in found.missing["stress.mysql"]
