"""The tables of the programs, and an audit of one program."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from lab.running.kept import KeptTables
from sa_doclock.testing import Audit, audit
from tests.support.databases import Database

from .models import Base, fill

Program = Callable[..., None]

#: MariaDB finds conflicts at its default level: innodb_snapshot_isolation.
_LEVEL = {name: {"isolation_level": "READ COMMITTED"} for name in ("mysql", "mariadb")}


def fill_tables(connection: Connection) -> None:
    with Session(connection) as session:
        fill(session)


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptTables]:
    tables = KeptTables(Base.metadata, fill_tables)
    yield tables
    tables.close()


@pytest.fixture
def engine(database: Database, kept: KeptTables) -> Engine:
    kept.put_rows(database)
    return database.engine(**_LEVEL.get(database.name, {}))


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make a second pass at each call, and only then: a busy machine must not look like a long hold."""
    passed = [0.0]

    def later() -> None:
        passed[0] += 1

    monkeypatch.setattr(time, "perf_counter", lambda: passed[0])
    return later


def run(program: Program, engine: Engine, wait: Callable[[], object], **options: Any) -> Audit:
    arguments = (engine, wait)[: len(inspect.signature(program).parameters)]
    with audit(**options) as found:
        program(*arguments)
    assert found.failures == (0, "")
    return found


def dropped(database: Database) -> set[str]:
    """SQLite has no row locks: FOR UPDATE has no effect there, which is an error."""
    return {"lock-without-effect"} if database.name == "sqlite" else set()
