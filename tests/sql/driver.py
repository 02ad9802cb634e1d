"""A DBAPI that sends nothing, and the script of its answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

# --------------------------------------------------------------------------------------------------
# The answers of a scripted server, and the statements it received.

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
    """The state of the server: its answers, its refusals, and the statements that it received.

    Every table has one row, in which every column is 1 unless ``values`` overrides it.
    """

    handshake: Mapping[str, Any] = field(default_factory=dict)  # by a marker in the SQL
    values: dict[str, Any] = field(default_factory=lambda: {"kind": "lease"})  # by column
    failures: list[tuple[str, BaseException]] = field(default_factory=list)  # by marker, once each
    sent: list[str] = field(default_factory=list)

    @property
    def statements(self) -> list[str]:
        """All statements sent, except the question for the transaction's id."""
        return [sql for sql in self.sent if sql != "SELECT CURRENT_TRANSACTION_ID()"]

    @property
    def selects(self) -> list[str]:
        """The SELECT statements among these, in order."""
        return [sql for sql in self.statements if _IN_FRONT.sub("", sql).startswith("SELECT")]

    def note(self, sql: str, parameters: Any) -> None:
        """Record the statement, one clause per line, or refuse it, as scripted."""
        plain = _OWN_LABEL.sub(r"\1.\2", sql)
        lines = [" ".join(line.split()) for line in plain.splitlines()]
        text = "\n".join(line for line in lines if line)
        self.sent.append(f"{text}  -- {_shown(parameters)}" if parameters else text)
        self.fail_at(sql)

    def answer(self, sql: str, parameters: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Record the statement; return names and rows."""
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
        """Raise the first scripted failure that matches, and remove it."""
        for number, (mark, error) in enumerate(self.failures):
            if mark in received:
                del self.failures[number]
                raise error


def columns_of(sql: str) -> list[str]:
    """Return the bare names that a SELECT reads: ``a.total AS a_total`` is ``total``."""
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


# --------------------------------------------------------------------------------------------------
# A DBAPI that sends nothing: it records its input, and answers from a script.
#
# Shaped like PyMySQL, psycopg, pyodbc and pymssql, as far as SQLAlchemy's dialects ask.  What a
# driver does by method or attribute (commit, isolation level) is written in parentheses.

_IDLE, _IN_TRANSACTION = 0, 2  # PQTRANS_IDLE, PQTRANS_INTRANS of libpq


class Cursor:
    """A cursor whose rows are ready as soon as it executes."""

    arraysize = 1
    rowcount = 1
    lastrowid = 1

    def __init__(self, script: Script) -> None:
        self.script = script
        self.description: Sequence[tuple[Any, ...]] | None = None
        self._rows: list[tuple[Any, ...]] = []

    def execute(self, sql: str, parameters: Any = ()) -> None:
        names, self._rows = self.script.answer(sql, parameters)
        self.description = [(name, *[None] * 6) for name in names] or None

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        return rows

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows[:size], self._rows[size:]
        return rows

    def nextset(self) -> bool:
        return False

    def setinputsizes(self, *_: object) -> None: ...

    def close(self) -> None: ...


class Connection:
    """The part that all drivers share."""

    closed = False

    def __init__(self, script: Script) -> None:
        self.script = script

    def cursor(self, *_: object, **__: object) -> Cursor:
        return Cursor(self.script)

    def commit(self) -> None:
        self._note_sent("(commit)")

    def rollback(self) -> None:
        self._note_sent("(rollback)")

    def close(self) -> None: ...

    def _note_sent(self, what: str) -> None:
        self.script.sent.append(what)
        self.script.fail_at(what)


class PyMySQLConnection(Connection):
    def character_set_name(self) -> str:
        return "utf8mb4"

    def autocommit(self, value: bool) -> None:
        if value:
            self._note_sent("(autocommit)")

    def get_autocommit(self) -> bool:
        return False


class ODBCConnection(Connection):
    autocommit = False

    def add_output_converter(self, *_: object) -> None: ...


class PymssqlConnection(Connection):
    autocommit_state = False

    def autocommit(self, value: bool) -> None:
        self.autocommit_state = value
        if value:
            self._note_sent("(autocommit)")


class PsycopgConnection(Connection):
    autocommit = False
    server_cursor_factory = None

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.cursor_factory: Any = lambda driver, **_: Cursor(driver.script)
        self._level: Any = None
        self.pgconn = SimpleNamespace(pipeline_status=0, transaction_status=_IDLE)
        self.info = self.pgconn

    def cursor(self, *_: object, **__: object) -> Any:
        self.pgconn.transaction_status = _IN_TRANSACTION  # sends BEGIN with the first statement
        return self.cursor_factory(self)

    def commit(self) -> None:
        super().commit()
        self.pgconn.transaction_status = _IDLE

    def rollback(self) -> None:
        super().rollback()
        self.pgconn.transaction_status = _IDLE

    def add_notice_handler(self, *_: object) -> None: ...

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        self._note_sent("(pipeline)")
        try:
            yield
        finally:
            self._note_sent("(end of pipeline)")

    @property
    def isolation_level(self) -> Any:
        return self._level

    @isolation_level.setter
    def isolation_level(self, level: Any) -> None:
        self._level = level
        self._note_sent(f"(isolation level {'of the server' if level is None else level.name})")
