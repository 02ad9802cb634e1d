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
_END_OF_LIST: Final = frozenset(
    [
        "WHERE",
        "GROUP",
        "ORDER",
        "HAVING",
        "LIMIT",
        "UNION",
        "EXCEPT",
        "INTERSECT",
        "SET",
        "VALUES",
        "SELECT",
        "FOR",
        "RETURNING",
    ]
)
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
    return [
        (name, Mode.WRITE if written else read) for name, written in _tables(_TOKEN.findall(text))
    ]


def _tables(tokens: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each table, and whether it is written."""
    before = [token.upper() for token in tokens]
    expected = in_list = written = False
    for index, token in enumerate(tokens):
        word = before[index]
        previous = before[index - 1] if index else ""
        if word in _BEFORE_TABLE and previous not in _NOT_AT_TARGET:
            expected, in_list = True, word == "FROM"
            written = word in _BEFORE_WRITTEN or (word == "FROM" and previous == "DELETE")
        elif expected and word not in _FILLERS:
            if word not in _END_OF_LIST:
                yield table_name(token), written
            expected = False
        elif word in _END_OF_LIST:
            in_list = False
        elif word == "," and in_list:
            expected, written = True, False


def table_name(token: str) -> str:
    """Return the name alone, without schema and quotes, in lower case."""
    return token.rpartition(".")[2].strip(' \t\n"`[]').lower()
