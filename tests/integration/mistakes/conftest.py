"""Plain sessions and locking ones, on a database with the orders of tests/integration/mistakes/models.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession
from tests.integration.mistakes.models import Base, Line, Order, fill
from tests.support.actors import Actor
from tests.support.databases import Database

Found = tuple[int, list[int]]


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Make the engine: one whose default level lets a lock come after a read, and waits long."""
    patient = {"connect_args": {"timeout": 60}} if database.name == "sqlite" else {}
    level = {} if database.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    engine = database.engine(**patient, **level)
    database.create(Base.metadata)
    with engine.begin() as connection:
        fill(connection)
    return engine


@pytest.fixture
def session_factory(engine: sa.Engine) -> sessionmaker[LockingSession]:
    """Make the sessions of sa_doclock, those of alice and bob among them."""
    return sessionmaker(engine, class_=LockingSession)


@pytest.fixture
def locking(session_factory: Callable[[], LockingSession]) -> Iterator[LockingSession]:
    """Open a session of sa_doclock."""
    with session_factory() as session:
        yield session


@pytest.fixture
def plain(engine: sa.Engine) -> Iterator[Session]:
    """Open a plain session, for the mistake."""
    with Session(engine) as session:
        yield session


@pytest.fixture
def stored(engine: sa.Engine) -> Callable[[int], Found]:
    """Return a function that reads an order and its lines, as they are committed."""

    def read(ident: int) -> Found:
        with engine.connect() as connection:
            total = connection.execute(sa.select(Order.total).where(Order.id == ident)).scalar_one()
            values = sa.select(Line.value).where(Line.order_id == ident).order_by(Line.id)
            return total, list(connection.execute(values).scalars())

    return read


@pytest.fixture
def meanwhile(engine: sa.Engine) -> Callable[[Callable[[Session], object]], None]:
    """Return a function with which somebody else does something, and commits."""

    def do(act: Callable[[Session], object]) -> None:
        with Session(engine) as session:
            act(session)
            session.commit()

    return do


@pytest.fixture
def plain_actors(
    database: Database, engine: sa.Engine
) -> Iterator[tuple[Actor[Session], Actor[Session]]]:
    """Bring on two who use plain sessions."""
    made: list[Actor[Any]] = [
        Actor(f"plain {n}", lambda: Session(engine), database) for n in (1, 2)
    ]
    yield made[0], made[1]
    for actor in made:
        actor.leave()
    for actor in made:
        actor.join()
