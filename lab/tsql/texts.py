"""Statements from the golden files, with parameters spelt as the server receives them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

#: A statement starts with one of these, at the start of a line.
VERBS = frozenset(
    {"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "SET", "DECLARE", "EXEC", "IF", "SAVE"}
    | {"COMMIT", "ROLLBACK"}
)
#: Actions that a driver performs by a method.
METHODS = frozenset({"(commit)", "(rollback)", "(autocommit)", "(back to the pool)"})
_END = re.compile(r";$|  -- ")  # the parameters follow the statement
_PLACE = re.compile(
    r"(?P<keep>'(?:[^']|'')*'|--.*)|__\[POSTCOMPILE_\w+\]|(?P<name>\[[^\]]*\])|\?|%\(\w+\)s"
)


class Statement(NamedTuple):
    """A statement, and the line of its file where it begins."""

    line: int
    text: str


def statements(golden: str) -> Iterator[Statement]:
    """Split a golden file: every line except comments and methods belongs to one statement."""
    begun, lines = 0, list[str]()
    for number, line in enumerate([*golden.splitlines(), ""], 1):
        stops = not line or line.startswith("--") or line in METHODS
        if lines and (stops or _begins(line, lines)):
            yield Statement(begun, "\n".join(lines))
            lines = []
        if not stops:
            begun = begun if lines else number
            lines.append(line)


def _begins(line: str, before: list[str]) -> bool:
    text = "\n".join(before)
    inside = text.count("(") > text.count(")")
    return bool(_END.search(before[-1])) or (line.partition(" ")[0] in VERBS and not inside)


def with_parameters(text: str) -> str:
    """Replace SQLAlchemy's parameter marks with @P1, @P2, as the driver does."""
    numbers = count(1)

    def spell(match: re.Match[str]) -> str:
        kept: str | None = match["keep"] or match["name"]
        return kept or f"@P{next(numbers)}"

    return _PLACE.sub(spell, text)
