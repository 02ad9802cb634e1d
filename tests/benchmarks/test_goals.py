"""Every goal has a figure's name, a verdict, and where it is missed a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import RESULTS, SCRIPTS
from benchmarks.goals import AT_LEAST, GOALS, REASONS, Goal
from benchmarks.lab import report
from benchmarks.lab.figures import Figure, Findings

GOAL = Goal("Speed", "update", "overhead.sqlite.update", 0.96)
RATE = Goal("Speed", "updates a second", "overhead.sqlite.rate", 2.0, AT_LEAST)


def verdict(goal: Goal, found: Findings, **reasons: str) -> report.Verdict:
    (one,) = report.verdicts([found], [goal], {k.replace("_", "."): v for k, v in reasons.items()})
    return one


def measured(name: str, value: float) -> Findings:
    found = Findings("overhead")
    found.note(name, Figure(value, value - 0.01, value + 0.01))
    return found


def test_a_goal_is_asked_for_once() -> None:
    names = [goal.figure for goal in GOALS]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} <= set(SCRIPTS)


def test_a_reason_is_given_for_a_goal() -> None:
    groups = [f"{goal.figure}." for goal in GOALS]
    for name in REASONS:
        assert any(group.startswith(f"{name}.") for group in groups), name


@pytest.mark.parametrize(
    ("goal", "value", "word"),
    [
        (GOAL, 0.96, "met"),
        (GOAL, 0.97, "**missed**"),
        (RATE, 2.0, "met"),
        (RATE, 1.9, "**missed**"),
    ],
)
def test_a_figure_meets_its_goal_or_does_not(goal: Goal, value: float, word: str) -> None:
    name = goal.figure.partition(".")[2]
    assert verdict(goal, measured(name, value)).word == word


def test_a_goal_that_is_missed_has_the_reason_that_somebody_wrote() -> None:
    found = measured("sqlite.update", 1.2)
    assert verdict(GOAL, found, overhead_sqlite="the disk").reason == "the disk"
    assert verdict(GOAL, found).reason == report.NOT_EXPLAINED
    assert verdict(GOAL, measured("sqlite.update", 0.9), overhead_sqlite="the disk").reason == ""


def test_a_figure_that_is_missing_has_the_reason_that_the_script_gave() -> None:
    found = Findings("overhead")
    assert verdict(GOAL, found).reason == report.NOT_MEASURED
    found.lacks("", "it has failed")
    assert verdict(GOAL, found).reason == "it has failed"
    found.lacks("sqlite", "no such file")
    assert verdict(GOAL, found, overhead="written by hand").reason == "no such file"
    assert verdict(GOAL, found).word == "no figure"


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    found = measured("sqlite.update", 0.9)
    found.lacks("mysql", "no server")
    found.servers["sqlite"] = "SQLite 3"
    found.write(tmp_path / "found.json")
    assert vars(Findings.read(tmp_path / "found.json")) == vars(found)


def test_the_page_has_every_goal() -> None:
    """After a change of goals: python -m benchmarks --results benchmarks/RESULTS.md."""
    written = RESULTS.read_text(encoding="utf-8")
    for goal in GOALS:
        assert f"## {goal.group}\n" in written
        assert f"| {goal.what} | {goal.wanted} |" in written


def test_the_page_tells_the_machine_and_the_servers() -> None:
    page = report.markdown(
        report.verdicts([measured("sqlite.update", 0.9)], [GOAL], {}),
        {"cores": "2"},
        {"sqlite": "SQLite 3.40"},
        ["pictures/scale.svg"],
    )
    assert "| cores | 2 |" in page
    assert "| servers | SQLite 3.40 |" in page
    assert "| update | <= 0.96 x | 0.900 [0.890 .. 0.910] | met |  |" in page
    assert "(pictures/scale.svg)" in page
