"""Workers that empty a table of jobs: claim_each(), and the fetch of two job queues.

Each is a separate process.  A job takes no time: the measurement covers fetching it and recording that it
is done.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each

ForUpdate, SkipLocked = LockOptions.ForUpdate, LockOptions.SkipLocked
PAYLOAD = {"text": "x" * 100}
Wait = Callable[[], object]


class Base(DeclarativeBase):
    pass


class Job(Base):
    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)
    payload: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    done: Mapped[bool] = mapped_column(default=False, index=True)


class Rows(ABC):
    """Lock a row while its job is done; one commit covers the lock and the work."""

    promise = "committed at most once; free again when the server knows that its worker has died"

    def fill(self, url: sa.URL, jobs: int) -> None:
        engine = sa.create_engine(url)
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.insert(Job), [{"payload": PAYLOAD} for _ in range(jobs)])
        engine.dispose()

    def work(self, url: sa.URL, wait: Wait) -> int:
        """Do jobs until none are left; return the number.

        :param wait: returns once all workers are ready.
        """
        engine = sa.create_engine(url, poolclass=sa.StaticPool)
        make = sessionmaker(engine, class_=LockingSession, priority="batch")
        with make() as session:
            session.scalars(sa.select(Job).where(sa.false())).all()
        wait()
        done = self.empty(make)
        engine.dispose()
        return done

    @abstractmethod
    def empty(self, make: sessionmaker[LockingSession]) -> int:
        """Do jobs until none are left; return the number."""


class ClaimEach(Rows):
    """Read the keys of all candidates, and lock one after another."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.name = f"claim_each, batch={batch}"

    def empty(self, make: sessionmaker[LockingSession]) -> int:
        done = 0
        for claim in claim_each(make, OPEN, order_by=Job.id, batch=self.batch):
            with claim as job:
                job.done = bool(job.payload["text"])
            done += 1
        return done


class NextRows(Rows):
    """Find and lock the first unlocked jobs in one statement."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.name = f"entity_set(SkipLocked).limit({limit})"

    def empty(self, make: sessionmaker[LockingSession]) -> int:
        done = 0
        while True:
            with make() as session:
                jobs = session.entity_set(Job, ForUpdate | SkipLocked).where(Job.done.is_(False))
                found = session.scalars(jobs.order_by(Job.id).limit(self.limit)).all()
                for job in found:
                    job.done = bool(job.payload["text"])
                session.save_changes()
            if not found:
                return done
            done += len(found)


OPEN = sa.select(Job).where(Job.done.is_(False))


class Procrastinate:
    """procrastinate: marks a fetched job, and commits the mark."""

    name = "procrastinate"
    promise = (
        "started at most once; stays marked when its worker dies, until somebody looks for such"
    )

    def fill(self, url: sa.URL, jobs: int) -> None:
        async def fill() -> None:
            async with self._open(url) as app:
                await app.schema_manager.apply_schema_async()
                task = app.configure_task("do", queue="jobs")
                await task.batch_defer_async(*({"payload": PAYLOAD} for _ in range(jobs)))

        asyncio.run(fill())

    def work(self, url: sa.URL, wait: Wait) -> int:
        from procrastinate.jobs import Status  # noqa: PLC0415

        async def work() -> int:
            done = 0
            async with self._open(url) as app:
                manager = app.job_manager
                worker = await manager.register_worker()
                wait()
                while (job := await manager.fetch_job(["jobs"], worker)) is not None:
                    assert job.task_kwargs["payload"] == PAYLOAD
                    await manager.finish_job(job, Status.SUCCEEDED, delete_job=False)
                    done += 1
            return done

        return asyncio.run(work())

    @staticmethod
    def _open(url: sa.URL) -> Any:
        from procrastinate import App, PsycopgConnector  # noqa: PLC0415

        return App(
            connector=PsycopgConnector(conninfo=dsn(url), min_size=1, max_size=1)
        ).open_async()


class PgQueuer:
    """pgqueuer: marks a fetched job, and moves a finished job to a log."""

    promise = "started at least once; fetched again when its worker has sent nothing for a time"

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.name = f"pgqueuer, batch_size={batch}"

    def fill(self, url: sa.URL, jobs: int) -> None:
        payload = PAYLOAD["text"].encode()

        async def fill() -> None:
            async with self._open(url) as queries:
                await queries.install()
                await queries.enqueue(["do"] * jobs, [payload] * jobs, [0] * jobs)

        asyncio.run(fill())

    def work(self, url: sa.URL, wait: Wait) -> int:
        from pgqueuer.queries import EntrypointExecutionParameter  # noqa: PLC0415

        entrypoints = {"do": EntrypointExecutionParameter(concurrency_limit=0)}
        beat = timedelta(minutes=5)

        async def work() -> int:
            done = 0
            manager = uuid.uuid4()
            async with self._open(url) as queries:
                wait()
                while jobs := await queries.dequeue(self.batch, entrypoints, manager, None, beat):
                    assert all(job.payload for job in jobs)
                    await queries.log_jobs([(job, "successful", None) for job in jobs])
                    done += len(jobs)
            return done

        return asyncio.run(work())

    @staticmethod
    @asynccontextmanager
    async def _open(url: sa.URL) -> Any:
        from pgqueuer.db import PsycopgDriver  # noqa: PLC0415
        from pgqueuer.queries import Queries  # noqa: PLC0415

        async with await psycopg.AsyncConnection.connect(dsn(url), autocommit=True) as connection:
            yield Queries(PsycopgDriver(connection))


def dsn(url: sa.URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)
