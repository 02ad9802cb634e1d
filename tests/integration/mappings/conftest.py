"""The tables of the mappings, made once, and two sessions that meet at documents of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession
from tests.integration.mappings.mapped_document import MappedDocument
from tests.integration.mappings.meeting import Meeting
from tests.integration.mappings.ways import Way
from tests.support.actors import Actor
from tests.support.databases import Database, new_sqlite_file


class Tables:
    """A database with the tables of those mappings that were asked for."""

    def __init__(self, database: Database) -> None:
        self.database = database
        patient = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
        self._engine = database.engine(**patient)
        self._made: dict[sa.MetaData, sa.Engine] = {}

    def engine_of(self, mapping: MappedDocument) -> sa.Engine:
        """Return the engine for this mapping, its tables made."""
        metadata = mapping.header.metadata
        if metadata not in self._made:
            engine = self._engine.execution_options(schema_translate_map=mapping.schemas)
            self._made[metadata] = engine
            try:
                metadata.create_all(engine, checkfirst=False)  # to look takes as long
            except sa.exc.DBAPIError:  # a run that was killed has left its tables behind
                metadata.drop_all(engine)
                metadata.create_all(engine)
        return self._made[metadata]

    def close(self) -> None:
        """Drop the tables."""
        for metadata, engine in self._made.items():
            metadata.drop_all(engine, checkfirst=False)
        self.database.close()


@pytest.fixture(scope="session")
def all_tables() -> Iterator[dict[str, Tables]]:
    """Keep the tables from test to test: making them takes longer than a test."""
    found: dict[str, Tables] = {}
    yield found
    for tables in found.values():
        tables.close()


@pytest.fixture
def tables(
    database: Database, all_tables: dict[str, Tables], tmp_path_factory: pytest.TempPathFactory
) -> Tables:
    """Return the tables of this database; on SQLite, in a file for all tests."""
    if database.column not in all_tables:
        own = database.kept()
        if database.name == "sqlite":
            own = new_sqlite_file(database.column, tmp_path_factory.mktemp("mappings"))
        all_tables[database.column] = Tables(own)
    return all_tables[database.column]


class Cast(NamedTuple):
    """Alice and bob, and what their sessions are made by."""

    makes: sessionmaker[LockingSession]
    actors: Sequence[Actor[LockingSession]]


def cast_for(tables: Tables, mapping: MappedDocument, *, pipeline: bool) -> Cast:
    """Bring alice and bob on, for documents of this mapping."""
    engine = tables.engine_of(mapping)
    makes = sessionmaker(engine, class_=LockingSession, expire_on_commit=False, pipeline=pipeline)
    return Cast(makes, [Actor(name, makes, tables.database) for name in ("alice", "bob")])


Meet = Callable[..., AbstractContextManager[Meeting]]


@pytest.fixture
def meet(tables: Tables) -> Iterator[Meet]:
    """Return a function that brings alice and bob to new documents of a mapping."""
    casts: dict[tuple[str, bool], Cast] = {}

    @contextmanager
    def meet(
        mapping: MappedDocument, way: Way, changes: Sequence[str], *, pipeline: bool
    ) -> Iterator[Meeting]:
        if (mapping.name, pipeline) not in casts:
            casts[mapping.name, pipeline] = cast_for(tables, mapping, pipeline=pipeline)
        makes, actors = casts[mapping.name, pipeline]
        try:
            yield Meeting(mapping, way, changes, makes, actors)
        finally:
            for actor in actors:
                actor.does(Session.close)

    yield meet
    actors = [actor for cast in casts.values() for actor in cast.actors]
    for actor in actors:
        actor.leave()
    for actor in actors:
        actor.join()
