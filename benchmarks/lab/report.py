"""benchmarks/RESULTS.md: every goal with its figure, met or missed, and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.goals import GOALS, PUBLISHED, REASONS, Goal
from benchmarks.lab.figures import Figure, Findings, reason_in

NOT_EXPLAINED = "nobody has written why: benchmarks/goals.py"
NOT_MEASURED = "not measured: `make bench` does"


class Verdict(NamedTuple):
    """One goal and its result."""

    goal: Goal
    figure: Figure | None
    reason: str  # empty if the goal is met

    @property
    def word(self) -> str:
        if self.figure is None:
            return "no figure"
        if self.goal.sense == PUBLISHED:
            return "published"
        return "met" if self.goal.met_by(self.figure.value) else "**missed**"

    @property
    def shown(self) -> str:
        if self.figure is None:
            return ""
        if self.goal.unit == "":
            return f"{self.figure.value:g}"
        return f"{self.figure}{'' if self.goal.unit == 'x' else ' ' + self.goal.unit}"


def verdicts(
    findings: Iterable[Findings],
    goals: Sequence[Goal] = GOALS,
    reasons: Mapping[str, str] = REASONS,
) -> list[Verdict]:
    """Return every goal in order; each goal that is not met has a reason."""
    figures: dict[str, Figure] = {}
    missing: dict[str, str] = {}
    for one in findings:
        figures.update(one.figures)
        missing.update(one.missing)
    return [_verdict(goal, figures, missing, reasons) for goal in goals]


def _verdict(
    goal: Goal,
    figures: Mapping[str, Figure],
    missing: Mapping[str, str],
    reasons: Mapping[str, str],
) -> Verdict:
    figure = figures.get(goal.figure)
    if figure is None:
        reason = reason_in(missing, goal.figure) or reason_in(reasons, goal.figure)
        return Verdict(goal, None, reason or NOT_MEASURED)
    if goal.met_by(figure.value):
        return Verdict(goal, figure, "")
    return Verdict(goal, figure, reason_in(reasons, goal.figure) or NOT_EXPLAINED)


def markdown(
    found: Sequence[Verdict],
    machine: Mapping[str, str],
    servers: Mapping[str, str],
    pictures: Iterable[str] = (),
) -> str:
    """Return the page.

    :param pictures: their paths from the page.
    """
    parts = _head(found), _machine(machine, servers), _goals(found), _pictures(pictures)
    return "\n".join(line for part in parts for line in part).rstrip("\n") + "\n"


def _pictures(pictures: Iterable[str]) -> list[str]:
    lines = [f"![{picture}]({picture})" for picture in pictures]
    return ["", "## Pictures", "", *lines] if lines else []


def summary(found: Iterable[Verdict]) -> str:
    words = [one.word.strip("*") for one in found]
    return ", ".join(
        f"{words.count(word)} {word}" for word in ("met", "missed", "published", "no figure")
    )


def _head(found: Sequence[Verdict]) -> list[str]:
    return [
        "# Results",
        "",
        "Written by `make bench`.  Ratios are paired in one process: the median of the rounds, and",
        "its 95 % bootstrap interval.  CPU is the client's process time.  What each script does is",
        "in its docstring; what was tried and did not help is in",
        "[README.md](README.md).",
        "",
        f"{len(found)} figures: {summary(found)}.",
        "",
    ]


def _machine(machine: Mapping[str, str], servers: Mapping[str, str]) -> list[str]:
    lines = ["## The machine", "", "| | |", "|---|---|"]
    lines += [f"| {what} | {value} |" for what, value in machine.items()]
    lines.append(f"| servers | {', '.join(servers.values()) or 'none'} |")
    return [*lines, ""]


def _goals(found: Iterable[Verdict]) -> list[str]:
    lines: list[str] = []
    group = ""
    for one in found:
        if one.goal.group != group:
            group = one.goal.group
            lines += ["", f"## {group}", "", _COLUMNS, "|---|---|---|---|---|"]
        cells = (one.goal.what, one.goal.wanted, one.shown, one.word, one.reason)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines[1:]


_COLUMNS = "| | goal | figure | | why, and what limits it |"
