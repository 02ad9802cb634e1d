"""An SQLite file with the folders in it, in each journal mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.reliability import Reliability, Row
from tests.reliability.faults.model import Base, fill
from tests.reliability.faults.sqlite.survived import journal_of, verify
from tests.reliability.faults.sqlite.written import read_logs
from tests.support.databases import Database


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
