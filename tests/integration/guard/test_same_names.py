"""A table named like a document's, in another schema or database, belongs to no document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import StaticPool

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Base, Order
from tests.integration.guard.steps import hold, writes_sent

pytestmark = pytest.mark.quick


class Legacy(DeclarativeBase):
    """The tables of another database."""


class LegacyOrder(Legacy):
    __tablename__ = "gd_order"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]


LEGACY: Any = LegacyOrder.__table__

Write = Callable[[LockingSession], object]


def changed(session: LockingSession) -> None:
    session.get_one(LegacyOrder, 1).total = 7
    session.flush()


WRITES: dict[str, Write] = {
    "flush": changed,
    "update of a class": lambda s: s.execute(sa.update(LegacyOrder).values(total=7)),
    "by key": lambda s: s.execute(sa.update(LegacyOrder), [{"id": 1, "total": 7}]),
    "update": lambda s: s.execute(sa.update(LEGACY).values(total=7)),
    "delete": lambda s: s.execute(sa.delete(LEGACY)),
    "bulk": lambda s: s.bulk_update_mappings(sa.inspect(LegacyOrder), [{"id": 1, "total": 7}]),
}
each_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def fill(engine: sa.Engine) -> sa.Engine:
    with engine.begin() as connection:
        connection.execute(sa.insert(LEGACY).values(id=1, total=1))
    return engine


@pytest.fixture
def legacy() -> Iterator[sa.Engine]:
    """Make another database with a table of the same name, but different columns."""
    engine = sa.create_engine("sqlite://", poolclass=StaticPool)
    Legacy.metadata.create_all(engine)
    yield fill(engine)
    engine.dispose()


@each_write
def test_a_session_of_another_database(legacy: sa.Engine, write: Write) -> None:
    with LockingSession(legacy) as session, writes_sent(session) as sent:
        write(session)
        session.commit()
    assert sent


@each_write
def test_a_session_of_two_databases(engine: sa.Engine, legacy: sa.Engine, write: Write) -> None:
    legacy_like = sa.create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(legacy_like)  # with the same columns too
    for other in (legacy, fill(legacy_like)):
        with LockingSession(binds={Legacy: other, LEGACY: other, Base: engine}) as session:
            write(session)
            session.commit()
    legacy_like.dispose()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_another_schema_of_the_database(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        name = f"{connection.dialect.default_schema_name}_archive"
        connection.execute(sa.schema.CreateSchema(name))
    archive = engine.execution_options(schema_translate_map={None: name})
    Base.metadata.create_all(archive)
    try:
        fill(archive)
        table: Any = LEGACY.to_metadata(sa.MetaData(), schema=name)
        with LockingSession(engine) as session, writes_sent(session) as sent:
            session.execute(sa.update(table).values(total=7))
            kept = hold(session, Order, 1)
            session.execute(sa.update(table).values(total=8))
            session.commit()
        assert len(sent) == len(kept) + 1
    finally:
        Base.metadata.drop_all(archive)
        with engine.begin() as connection:
            connection.execute(sa.schema.DropSchema(name))


@each_write
def test_its_twin_is_refused(session: LockingSession, write: Write) -> None:
    """A session that also uses the document has one database for both."""
    kept = session.get_one(Order, 2)
    with pytest.raises(UnlockedWrite):
        write(session)
    del kept


@each_write
def test_a_model_of_its_own_is_left_alone(write: Write) -> None:
    """Two registries, as of two programs in one process, are separate until a session uses both."""
    legacy = sa.create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(legacy)  # with the same columns
    with LockingSession(fill(legacy)) as session, writes_sent(session) as sent:
        write(session)
        session.commit()
    assert sent
    legacy.dispose()
