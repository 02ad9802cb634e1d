"""SQLite itself, on a file; what is sent to it is written down as for the scripted servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Engine, create_engine, insert

from tests.sql.models import Base
from tests.sql.script import Script


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = ()) -> _Cursor:
        assert isinstance(self.connection, _Connection)
        self.connection.script.note(sql, parameters)
        super().execute(sql, parameters)
        return self


class _Connection(sqlite3.Connection):
    script: Script

    def cursor(self, *_: object) -> Any:
        return _Cursor(self)

    def commit(self) -> None:
        self.script.note("(commit)", ())
        super().commit()

    def rollback(self) -> None:
        self.script.note("(rollback)", ())
        super().rollback()


@contextmanager
def serving_file(script: Script) -> Iterator[Engine]:
    """Yield an engine on a file where every table has one row, of ones."""
    with TemporaryDirectory() as folder:
        for name, contents in _filled_files().items():
            Path(folder, name).write_bytes(contents)
        engine = _engine(Path(folder, "shop.db"), script)
        engine.connect().close()
        yield engine
        engine.dispose()


def _engine(path: Path, script: Script) -> Engine:
    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = _Connection(*args, **options)
        sqlite3.Cursor(connection).execute("PRAGMA synchronous = OFF")
        sqlite3.Cursor(connection).execute("ATTACH ? AS books", (str(path.with_name("books")),))
        connection.script = script
        return connection

    return create_engine(f"sqlite:///{path}", connect_args={"factory": connect})


@cache  # the files of each script are the same: to fill them takes longer than most tests
def _filled_files() -> Mapping[str, bytes]:
    script = Script()
    with TemporaryDirectory() as folder:
        engine = _engine(Path(folder, "shop.db"), script)
        with engine.begin() as connection:
            Base.metadata.create_all(connection)
            for table in Base.metadata.sorted_tables:
                row = {column.name: script.values.get(column.name, 1) for column in table.columns}
                connection.execute(insert(table).values(row))
        engine.dispose()
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
