"""Processes that are killed while they write an SQLite file, and the state that the others find then.

A child process (``worker.py``) changes folders as the clients of tests/reliability/faults do, and writes down
on disk what it means to commit and what was acknowledged. ``test_processes.py`` starts and kills it; here
file and log are compared when it is dead.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.reliability import Reliability, Row
from tests.reliability.faults.afterwards import Found, locks_left, look_on_disk
from tests.reliability.faults.model import Base, Log, Mark, fill
from tests.reliability.faults.sqlite.worker import read_logs
from tests.support.databases import Database


def verify(path: Path, log: Log, row: Row) -> Found:
    """Fail if anything is wrong; what was found is in the table in any case.

    Nobody else has the file open: the first statement rolls a hot journal back, and would be
    refused if anything were locked.
    """
    wrong = _damage(path)
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.connect() as connection:
        found = look_on_disk(connection, log)
        there = set(connection.scalars(sa.select(Mark.attempt)))
    meant = {attempt.number for attempt in log.attempts}
    found.inconsistent += [f"attempt {one} was never to be committed" for one in there - meant]
    row.lost += len(found.lost)
    row.inconsistent += len(found.inconsistent)
    wrong += [*found.lost, *found.inconsistent, *locks_left(engine), *map(repr, log.foreign)]
    assert not wrong, "\n".join(wrong)
    return found


def _damage(path: Path) -> list[str]:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    with contextlib.closing(connection):
        try:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute(
                "PRAGMA user_version = 1"
            )  # a write, which needs a journal of its own
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            return [f"left behind: {error}"]
        (reported,) = connection.execute("PRAGMA integrity_check").fetchone()
        wrong = [] if reported == "ok" else [f"integrity_check: {reported}"]
        wrong += [
            f"foreign_key_check: {row}" for row in connection.execute("PRAGMA foreign_key_check")
        ]
    if journal_of(path).exists():
        wrong.append("the journal is still there")
    return wrong


def journal_of(path: Path) -> Path:
    """The rollback journal, which is there while a transaction writes, or after its death."""
    return path.with_name(f"{path.name}-journal")


# --------------------------------------------------------------------------------------------------
# An SQLite file with the folders in it, in each journal mode.


@dataclass
class File:
    """The file, and the logs of all who have written it."""

    path: Path
    column: str
    reliability: Reliability
    logs: list[Path] = field(default_factory=list)
    _acknowledged: int = 0  # and counted
    _errors: Counter[str] = field(default_factory=Counter)

    @property
    def written_ahead(self) -> bool:
        """Return whether it is in WAL mode."""
        return self.column == "sqlite"

    @property
    def writes_first(self) -> Path:
        """The file that a COMMIT writes first, beside the database."""
        return self.path.with_name(f"{self.path.name}-wal") if self.written_ahead else self.journal

    @property
    def journal(self) -> Path:
        """The rollback journal."""
        return journal_of(self.path)

    def whose(self) -> tuple[Path, Path, int]:
        """Return the first arguments of a new process: file, log, number."""
        number = len(self.logs) + 1
        self.logs.append(self.path.with_name(f"{number}.log"))
        self.logs[-1].touch()
        return self.path, self.logs[-1], number

    def row(self, fault: str) -> Row:
        """Return the row of this fault in the table."""
        return self.reliability.row(fault, self.column)

    def verify(self, row: Row) -> int:
        """Compare the file with the logs; return how many updates were acknowledged."""
        log = read_logs(self.logs)
        found = verify(self.path, log, row)
        row.acknowledged += found.acknowledged - self._acknowledged
        row.errors += log.errors - self._errors
        self._acknowledged, self._errors = found.acknowledged, log.errors
        return found.acknowledged


@pytest.fixture
def file(database: Database, reliability: Reliability) -> File:
    """Make the file."""
    engine = database.engine()
    database.create(Base.metadata)
    with engine.begin() as connection:
        fill(connection)
    engine.dispose()
    path = sa.make_url(database.url).database
    assert path is not None
    return File(Path(path), database.column, reliability)
