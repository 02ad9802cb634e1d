"""The jobs of these tests, and the work on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, ForeignKeyConstraint, String
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.pool import QueuePool

from sa_doclock import AsyncLockingSession, document
from tests.integration.asyncio.drivers import connected, drivers_of, url_for
from tests.support.databases import Database


class Base(DeclarativeBase):
    type_annotation_map = {str: String(40)}  # noqa: RUF012  # SQLAlchemy's own interface


def key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


class Job(Base):
    __tablename__ = "cl_job"
    id: Mapped[int] = key()
    state: Mapped[str] = mapped_column(index=True)
    weight: Mapped[int]
    runs: Mapped[int] = mapped_column(default=0)
    steps: Mapped[list[Step]] = relationship(order_by="Step.id")


class Step(Base):
    __tablename__ = "cl_step"
    id: Mapped[int] = key()
    job_id: Mapped[int] = mapped_column(ForeignKey("cl_job.id"))
    done: Mapped[bool]


class Log(Base):
    """One row for each run of a job."""

    __tablename__ = "cl_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int]
    worker: Mapped[str]


@document(parts=("items",))
class Parcel(Base):
    """A declared document with a composite key."""

    __tablename__ = "cl_parcel"
    year: Mapped[int] = key()
    number: Mapped[int] = key()
    state: Mapped[str]
    items: Mapped[list[Item]] = relationship(order_by="Item.id")


class Item(Base):
    __tablename__ = "cl_item"
    __table_args__ = (
        ForeignKeyConstraint(["year", "number"], ["cl_parcel.year", "cl_parcel.number"]),
    )
    id: Mapped[int] = key()
    year: Mapped[int]
    number: Mapped[int]
    name: Mapped[str]


class Task(Base):
    """Joined inheritance."""

    __tablename__ = "cl_task"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str]
    state: Mapped[str]


class Call(Task):
    __tablename__ = "cl_call"
    __mapper_args__ = {"polymorphic_identity": "call"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(ForeignKey("cl_task.id"), primary_key=True)
    answered: Mapped[bool]


_ROWS: dict[type[Base], list[dict[str, Any]]] = {
    Job: [{"id": n, "state": "new", "weight": 100 - n % 4, "runs": 0} for n in range(1, 11)],
    Step: [{"id": n, "job_id": (n + 1) // 2, "done": False} for n in range(1, 7)],
    Parcel: [{"year": 2024, "number": n, "state": "new"} for n in (1, 2, 3)],
    Item: [{"id": n, "year": 2024, "number": n, "name": "a"} for n in (1, 2, 3)],
    Task: [{"id": n, "kind": "call", "state": "new"} for n in (1, 2, 3)],
    Call: [{"id": n, "answered": False} for n in (1, 2, 3)],
}

NEW = sa.select(Job).where(Job.state == "new")
"""The jobs that are waiting."""

STATES = sa.select(Job.id, Job.state).order_by(Job.id)


def put_jobs(connection: sa.Connection) -> None:
    """Replace all rows with ten new jobs."""
    for table in reversed(Base.metadata.sorted_tables):
        connection.execute(table.delete())
    for entity, rows in _ROWS.items():
        connection.execute(sa.insert(Base.metadata.tables[entity.__tablename__]), rows)


def run(job: Job) -> None:
    """Do the work: afterwards the job is no longer new."""
    job.state = "done"
    job.runs += 1


# --------------------------------------------------------------------------------------------------
# Functions that the tests of async_claim_each() share.

Factory = async_sessionmaker[AsyncLockingSession]


@asynccontextmanager
async def factory(database: Database) -> AsyncIterator[Factory]:
    """Return a factory on the first driver; at the end every connection is back in the pool."""
    arguments = database.connect_args  # of psycopg, the first driver
    options = {"connect_args": arguments} if arguments else {}
    async with connected(url_for(database, drivers_of(database.column)[0]), **options) as engine:
        yield async_sessionmaker(engine, class_=AsyncLockingSession)
        pool = engine.sync_engine.pool
        assert isinstance(pool, QueuePool)
        assert pool.checkedout() == 0


async def next_of(claims: Any) -> Any:
    """Return the next claim; anext() accepts only an iterator type."""
    return await claims.__anext__()
