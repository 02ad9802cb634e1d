"""A statement with a schema_translate_map, or at another engine, raises the version where it writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession
from tests.integration.versions.models import Base, Marked, MarkedLine, Numbered, NumberedLine

pytestmark = pytest.mark.databases("postgresql", "mysql", "mariadb")
TENANT = "vs_tenant"
MAP: dict[str, Any] = {"schema_translate_map": {None: TENANT}}
KINDS = ((Numbered, NumberedLine), (Marked, MarkedLine))
TABLES: list[Any] = [one.__table__ for kinds in KINDS for one in kinds]


@pytest.fixture
def tenant(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Make a second schema with the same rows."""
    there = engine.execution_options(**MAP)
    with there.begin() as connection:
        connection.execute(sa.schema.CreateSchema(TENANT))
        Base.metadata.create_all(connection, tables=TABLES)
        for header, line in KINDS:
            version = 1 if header is Numbered else "one"
            connection.execute(sa.insert(header).values(id=1, total=0, version=version))
            connection.execute(sa.insert(line).values(id=1, header_id=1, value=0))
    yield there
    with there.begin() as connection:
        Base.metadata.drop_all(connection, tables=TABLES)
        connection.execute(sa.schema.DropSchema(TENANT))


@pytest.mark.parametrize(("header", "line"), KINDS)
def test_a_statement_raises_the_version_where_it_writes(
    engine: sa.Engine, tenant: sa.Engine, header: Any, line: Any
) -> None:
    of_header = sa.select(header.version).where(header.id == 1)

    def versions() -> list[object]:
        found = []
        for one in (engine, tenant):
            with one.connect() as connection:
                found.append(connection.scalar(of_header))
        return found

    here, there = versions()
    with LockingSession(engine) as session:
        session.scalars(
            sa.select(header).where(header.id == 1).with_for_update(), execution_options=MAP
        ).one()
        session.execute(sa.update(line).where(line.id == 1).values(value=7), execution_options=MAP)
        session.commit()
    assert versions()[0] == here
    assert versions()[1] != there


@pytest.mark.parametrize(("header", "line"), KINDS)
def test_a_statement_raises_the_version_in_the_database_that_it_names(
    engine: sa.Engine, tmp_path: Path, header: Any, line: Any
) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(other, tables=TABLES)
    with other.begin() as connection:
        version = 1 if header is Numbered else "one"
        connection.execute(sa.insert(header).values(id=1, total=0, version=version))
        connection.execute(sa.insert(line).values(id=1, header_id=1, value=0))
    of_key, there = sa.select(header.version).where(header.id == 1), {"bind": other}
    with LockingSession(engine) as session:
        session.scalars(
            sa.select(header).where(header.id == 1).with_for_update(), bind_arguments=there
        ).one()
        session.execute(sa.update(line).where(line.id == 1).values(value=7), bind_arguments=there)
        session.commit()
    with other.connect() as connection:
        assert connection.scalar(of_key) != version
    other.dispose()
