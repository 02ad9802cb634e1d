"""An SQLite file with the rows of tests/support/models.py, and a record of the statements it receives."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from sa_doclock import LockingSession
from tests.support.models import Base, refill


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unit") / "filled.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        Base.metadata.create_all(connection)
        refill(connection)
    engine.dispose()
    return path


@pytest.fixture
def engine(filled: Path, tmp_path: Path) -> Iterator[Engine]:
    """Connect to a copy. Durability is off: losing the file costs nothing."""
    path = shutil.copy(filled, tmp_path / "unit.db")
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    yield engine
    engine.dispose()


@pytest.fixture
def sent(engine: Engine) -> list[str]:
    """Record every statement from now on, and every end of a transaction."""
    noted: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        noted.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", note)
    for what in ("begin", "commit", "rollback"):
        event.listen(engine, what, lambda _, what=what: noted.append(f"({what})"))
    return noted


@pytest.fixture
def session(engine: Engine) -> Iterator[LockingSession]:
    with LockingSession(engine) as session:
        yield session


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Collect garbage once per file, so that each test searches only its own objects.

    Otherwise every search would also walk the objects that earlier tests left.
    """
    gc.collect()
    gc.freeze()
