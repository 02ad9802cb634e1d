"""The tables that the text of a statement names, and the way in which it uses each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .accesses import Mode

_NOT_CODE: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_NAME: Final = r'(?:"[^"]+"|`[^`]+`|\[[A-Za-z_][^\]]*\]|[^\W\d][\w$]*)'
_TOKEN: Final = re.compile(rf"{_NAME}(?:\s*\.\s*{_NAME})*|[(),]")
_BEFORE_TABLE: Final = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "USING", "MERGE"})
_BEFORE_WRITTEN: Final = frozenset({"INTO", "UPDATE", "MERGE"})
_NOT_AT_TARGET: Final = frozenset({"FOR", "KEY", "ON", "DO"})  # as in FOR NO KEY UPDATE
_FILLERS: Final = frozenset({"ONLY", "LATERAL", "TABLE", "("})
_END_OF_LIST: Final = {
    *("WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "EXCEPT", "INTERSECT"),
    *("SET", "VALUES", "SELECT", "FOR", "RETURNING"),
}
_NO_TABLES: Final = _BEFORE_TABLE | _FILLERS | _END_OF_LIST
_FUNCTION: Final = re.compile(r"\w\s*\(")
_LOCK_FUNCTION: Final = re.compile(r"lock\w*\s*\(", re.IGNORECASE)
_HINTS: Final = re.compile(r"\bWITH\s*\([^()]*\)", re.IGNORECASE)
_EXCLUSIVE: Final = re.compile(r"\bFOR\s+(NO\s+KEY\s+)?UPDATE\b|\b(UPD|X)LOCK\b", re.IGNORECASE)
_SHARED: Final = re.compile(
    r"\bFOR\s+(KEY\s+)?SHARE\b|\bLOCK\s+IN\s+SHARE\s+MODE\b|\bHOLDLOCK\b", re.IGNORECASE
)


def modes_of_tables(statement: str, read: Mode) -> list[tuple[str, Mode]]:
    """Return each table that the statement names, as often as it does, with its use.

    The names of functions and CTEs can be among them: then more statements conflict than have to.

    :param read: the mode of a plain read.
    """
    text = _NOT_CODE.sub(" ", statement)
    if _EXCLUSIVE.search(text):
        read = Mode.LOCK
    elif _SHARED.search(text):
        read = Mode.SHARE
    tokens = _TOKEN.findall(_HINTS.sub(" ", text))
    return [(name, Mode.WRITE if written else read) for name, written in _tables(tokens)]


def calls_function(statement: str) -> bool:
    """Return whether the statement calls a function."""
    return _FUNCTION.search(_NOT_CODE.sub(" ", statement)) is not None


def calls_lock_function(statement: str) -> bool:
    """Return whether the statement calls a function that has "lock" in its name, as GET_LOCK()."""
    return _LOCK_FUNCTION.search(_NOT_CODE.sub(" ", statement)) is not None


def _tables(tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each table, and whether it is written."""
    place = _Place()
    previous = ""
    for token in tokens:
        word = token.upper()
        if place.is_at_table(word):
            yield table_name(token), place.written
        place.move(word, previous)
        previous = word


class _Place:
    """A place in a statement.

    :ivar expected: a table is next.
    :ivar in_list: a comma stands in front of another table.
    :ivar written: the table that is next is written.
    """

    expected = in_list = written = False

    def is_at_table(self, word: str) -> bool:
        """Return whether this word is the table that was expected."""
        return self.expected and word not in _NO_TABLES

    def move(self, word: str, previous: str) -> None:
        """Go past this word."""
        if word in _BEFORE_TABLE and previous not in _NOT_AT_TARGET:
            self.expected, self.in_list = True, word == "FROM"
            self.written = word in _BEFORE_WRITTEN or previous == "DELETE"
        elif word == "," and self.in_list:
            self.expected, self.written = True, False
        elif word not in _FILLERS:
            self.expected = False
            self.in_list = self.in_list and word not in _END_OF_LIST


def table_name(token: str) -> str:
    """Return the name alone, without schema and quotes, in lower case."""
    return token.rpartition(".")[2].strip(' \t\n"`[]').lower()
