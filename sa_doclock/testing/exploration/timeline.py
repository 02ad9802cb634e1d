"""A run as a table of two columns, for people: who sent which statement, what it saw, who waited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os.path import relpath
from pathlib import Path
from textwrap import wrap
from typing import Final

from ..outcome import Outcome
from .participant import Step
from .scheduler import GOES_ON, WAITS
from .search import FIRST

_WIDTH: Final = 48
_LONGEST: Final = 100
_COLUMNS_READ: Final = re.compile(r"^SELECT (.{20,}?) FROM ", re.IGNORECASE)
_NAMES: Final = {1: "first", 2: "second"}
_ENDS: Final = frozenset({"COMMIT", "ROLLBACK"})


def timeline_of(events: Sequence[tuple[str, Step]], outcomes: tuple[Outcome, Outcome]) -> str:
    """Return the table."""
    lines = [_row(*_NAMES.values()), _row("-" * _WIDTH, "-" * _WIDTH)]
    waited = {id(step) for kind, step in events if kind == WAITS}
    for kind, step in events:
        text = _cell(kind, step, waited=id(step) in waited)
        if text:
            lines.extend(_cells(step.function, text))
    for function, outcome in zip(_NAMES, outcomes, strict=True):
        lines.extend(_cells(function, [_end(outcome)]))
    return "\n".join(lines)


def short_sql(statement: str) -> str:
    """Return the statement on one line, without the list of columns that it reads."""
    text = _COLUMNS_READ.sub("SELECT ... FROM ", " ".join(statement.split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def short_line(line: str | None) -> str:
    """Return a line of the program, relative to the directory of the test run."""
    if line is None:
        return ""
    file, _, number = line.rpartition(":")
    try:
        near = relpath(file)
    except ValueError:  # another drive
        return line
    return line if near.startswith("..") else f"{Path(near).as_posix()}:{number}"


def _cell(kind: str, step: Step, *, waited: bool) -> list[str]:
    if kind == WAITS:
        return [f"  waits for the {_NAMES[3 - step.function]}"]
    if kind == GOES_ON:
        return [f"  goes on: {short_sql(step.statement)}", *_seen(step)]
    if not step.used and step.statement not in _ENDS:
        return []  # a setting, a savepoint
    where = short_line(step.line)
    lines = [where] if where else []
    values = [f"  with {step.values}"] if step.values else []
    return [*lines, f"  {short_sql(step.statement)}", *values, *([] if waited else _seen(step))]


def _seen(step: Step) -> list[str]:
    if step.error is not None:
        original = getattr(step.error, "orig", None) or step.error
        first_line = str(original).strip().partition("\n")[0]
        return [f"  -> {type(original).__name__}: {first_line}"]
    return [] if step.saw is None else [f"  -> {step.saw}"]


def _end(outcome: Outcome) -> str:
    if outcome.error is None:
        return f"returned {outcome.value!r}"
    text = str(outcome.error).strip().partition("\n")[0]
    return f"raised {type(outcome.error).__name__}: {text}"


def _cells(function: int, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        indent = "    " if line.startswith("  ") else "  "
        for part in wrap(line, _WIDTH, subsequent_indent=indent) or [""]:
            yield _row(part, "") if function == FIRST else _row("", part)


def _row(left: str, right: str) -> str:
    return f"{left:<{_WIDTH}} | {right}".rstrip()
