"""The file after a process was killed: whole, free, and with all that was acknowledged."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.reliability import Row
from tests.reliability.faults.leftovers import locks_left
from tests.reliability.faults.log import Log
from tests.reliability.faults.model import Mark
from tests.reliability.faults.on_disk import Found, look_on_disk


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
