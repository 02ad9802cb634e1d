"""A declared order with lines, and a document that comes before it in the order of locking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    sessionmaker,
)

from sa_doclock import LockingSession, document
from tests.support.actors import Actor
from tests.support.databases import Database


class Base(DeclarativeBase):
    pass


@document
class Order(Base):
    __tablename__ = "ms_order"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "ms_line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(ForeignKey("ms_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


@document
class Customer(Base):
    __tablename__ = "ms_customer"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    orders: Mapped[int]


ORDER_1 = (30, [10, 20])
"""Order 1 as every test finds it: its total, and the values of its lines."""


def fill(connection: sa.Connection) -> None:
    """Put the rows in the tables, and take every other away."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    connection.execute(sa.insert(Customer), [{"id": 1, "orders": 2}])
    connection.execute(sa.insert(Order), [{"id": 1, "total": 30}, {"id": 2, "total": 5}])
    lines = [(1, 1, 10), (2, 1, 20), (3, 2, 5)]
    connection.execute(
        sa.insert(Line), [{"id": i, "order_id": order, "value": v} for i, order, v in lines]
    )


# --------------------------------------------------------------------------------------------------
# Plain sessions and locking ones, on a database with the orders of tests/integration/mistakes/conftest.py.

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
