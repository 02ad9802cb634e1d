"""A DBAPI that sends nothing: it writes down what it is given, and answers from a script.

Shaped like PyMySQL, psycopg, pyodbc and pymssql, as far as SQLAlchemy's dialects ask.  What a
driver does by method or attribute (commit, isolation level) is written down in parentheses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.sql.script import Script

_IDLE, _IN_TRANSACTION = 0, 2  # PQTRANS_IDLE, PQTRANS_INTRANS of libpq


class Cursor:
    """Its rows are there as soon as it is asked to execute."""

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
        self.pgconn.transaction_status = _IN_TRANSACTION  # it sends BEGIN with the first statement
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
