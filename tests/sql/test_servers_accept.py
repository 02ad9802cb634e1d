"""Real servers accept every text of the golden files.

tests/integration/locking tests the effect of each lock.
"""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData
from sqlalchemy.orm import Session

from sa_doclock import LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.options import is_row_lock
from tests.sql.golden import (
    BY_KEY,
    BY_KEYS,
    CLAIM_KEYS,
    CLAIMING,
    CLAIMS,
    LOCKS,
    PARTS,
    SETS,
    TIMED,
    TIMEOUT_SECONDS,
)
from tests.sql.models import Base
from tests.support.databases import Database

KEY = {"pk_0": 1, "pk_1": 1}
DEFAULT_SCHEMA = {"books": None}


@pytest.fixture
def session(database: Database) -> Session:
    metadata = MetaData()
    for table in Base.metadata.sorted_tables:
        table.to_metadata(metadata, schema=None)  # type: ignore[arg-type]  # None works
    database.create(metadata)
    return Session(database.engine().execution_options(schema_translate_map=DEFAULT_SCHEMA))


def test_sets(session: Session) -> None:
    with session:
        for make in SETS.values():
            for lock in LOCKS:
                assert session.execute(make(lock)).all() == []


def test_by_key(session: Session) -> None:
    with session:
        for make in BY_KEY.values():
            for lock in filter(is_row_lock, LOCKS):
                assert session.execute(make(lock), KEY).all() == []


def test_by_keys(session: Session) -> None:
    with session:
        for make in BY_KEYS.values():
            for lock in LOCKS:
                assert session.execute(make(lock)).all() == []


def test_parts(session: Session) -> None:
    with session:
        for make in PARTS.values():
            for lock in LOCKS:
                assert session.execute(make(lock)).all() == []


def test_claims(session: Session) -> None:
    with session:
        for make in CLAIM_KEYS.values():
            assert session.execute(make(LockOptions.None_)).all() == []
        for make in CLAIMS.values():
            for lock in CLAIMING:
                assert session.execute(make(lock)).all() == []


def test_timed(session: Session) -> None:
    with session:
        strategy = strategy_for(session.connection())
        for title in TIMED:
            for lock in (LockOptions.SharedRead, LockOptions.ForUpdate):
                make, key = (BY_KEYS[title], {}) if title in BY_KEYS else (BY_KEY[title], KEY)
                timed = strategy.waits.timed(make(lock), lock, TIMEOUT_SECONDS)
                assert session.execute(timed, key).all() == []
