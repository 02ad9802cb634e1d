"""The answers of a scripted server, and the statements that it received."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ALIAS = re.compile(r"\s+AS\s+\S+$", re.IGNORECASE)
_OWN_LABEL = re.compile(r"\b(\w+)\.(\w+) AS \1_\2\b")  # Session.get() of SQLAlchemy 2.0
_NUMBERED = re.compile(r"_\d+$")
_QUOTES = '"`[]'
_IN_FRONT = re.compile(
    r"^(SET LOCK_TIMEOUT \d+; |SET STATEMENT \S+ FOR |EXEC sp_executesql N'SET LOCK_TIMEOUT \d+; )"
)

MISSING = 99
"""A key that no row has."""
NOTHING = re.compile(r"\bfalse\b|0 = 1|1 ?!= ?1")
"""A condition that no row meets, as SQLAlchemy spells it."""


@dataclass
class Script:
    """The state of the server: its answers, its refusals, and the statements that were sent.

    Every table has one row, in which every column is 1 unless ``values`` says otherwise.
    """

    handshake: Mapping[str, Any] = field(default_factory=dict)  # by a mark in the SQL
    values: dict[str, Any] = field(default_factory=lambda: {"kind": "lease"})  # by column
    failures: list[tuple[str, BaseException]] = field(default_factory=list)  # by a mark, once each
    sent: list[str] = field(default_factory=list)

    @property
    def statements(self) -> list[str]:
        """All that was sent, but for the question which transaction it is."""
        return [sql for sql in self.sent if sql != "SELECT CURRENT_TRANSACTION_ID()"]

    @property
    def selects(self) -> list[str]:
        """The SELECT statements among these, in order."""
        return [sql for sql in self.statements if _IN_FRONT.sub("", sql).startswith("SELECT")]

    def note(self, sql: str, parameters: Any) -> None:
        """Write the statement down, one clause a line; or refuse it, as the script says."""
        plain = _OWN_LABEL.sub(r"\1.\2", sql)
        lines = [" ".join(line.split()) for line in plain.splitlines()]
        text = "\n".join(line for line in lines if line)
        self.sent.append(f"{text}  -- {_shown(parameters)}" if parameters else text)
        self.fail_at(sql)

    def answer(self, sql: str, parameters: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Write the statement down; return names and rows."""
        self.note(sql, parameters)
        for mark, value in self.handshake.items():
            if mark in sql:
                row = value if isinstance(value, tuple) else (value,)
                rows = value if isinstance(value, list) else [row]
                return ["answer"] * (len(rows[0]) if rows else 1), rows
        if "sp_getapplock" in sql:
            return ["answer"], [(0,)]
        select = _IN_FRONT.sub("", sql.lstrip())
        if not select.upper().startswith("SELECT"):
            return [], []
        columns = columns_of(select)
        row = tuple(self.values.get(column, 1) for column in columns)
        empty = MISSING in _values(parameters) or NOTHING.search(sql)
        return columns, [] if empty else [row]

    def fail_at(self, received: str) -> None:
        """Raise the first failure that waits for this, and forget it."""
        for number, (mark, error) in enumerate(self.failures):
            if mark in received:
                del self.failures[number]
                raise error


def columns_of(sql: str) -> list[str]:
    """Return the bare names of what a SELECT reads: ``a.total AS a_total`` is ``total``."""
    depth, items, start = 0, [], 0
    text = re.sub(r"/\*.*?\*/|^SELECT\b|\bTOP \S+", " ", " ".join(sql.split()))
    end = len(text)
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and character == ",":
            items.append(text[start:position])
            start = position + 1
        if depth == 0 and text.startswith(" FROM ", position):
            end = position
            break
    items.append(text[start:end])
    return [_bare(item) for item in items]


def _bare(item: str) -> str:
    name = _ALIAS.sub("", item.strip()).rpartition(".")[2].strip(_QUOTES)
    return _NUMBERED.sub("", name)


def _shown(parameters: Any) -> str:
    return ", ".join(map(repr, _values(parameters)))


def _values(parameters: Any) -> list[Any]:
    return list(parameters.values() if isinstance(parameters, Mapping) else parameters)
