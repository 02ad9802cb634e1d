"""Nothing is flushed while a lock is recorded, which may have to read the row by its own key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column, registry

from sa_doclock import LockingSession, LockOptions
from tests.support.databases import Database

pytestmark = pytest.mark.databases("sqlite")
mapped = registry()


@mapped.mapped
class Country:
    __tablename__ = "ar_country"
    code: Mapped[str] = mapped_column(sa.String(20, collation="NOCASE"), primary_key=True)
    people: Mapped[int]


@pytest.fixture
def session(database: Database) -> Iterator[LockingSession]:
    database.create(mapped.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        rows = [{"code": "abc", "people": 1}, {"code": "xyz", "people": 2}]
        connection.execute(sa.insert(Country.__table__), rows)  # type: ignore[attr-defined]
    with LockingSession(engine) as session:
        yield session


def test_a_key_that_is_spelled_otherwise_flushes_nothing(session: LockingSession) -> None:
    other = session.get_one(Country, "xyz")
    other.people += 1
    session.commit()
    other.people += 1
    flushed: list[object] = []
    sa.event.listen(session, "before_flush", lambda *_: flushed.append(True))
    assert session.get_one_entity(Country, "ABC", LockOptions.ForUpdate).people == 1
    assert flushed == []
    assert other in session.dirty
