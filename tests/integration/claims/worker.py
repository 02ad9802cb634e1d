"""A worker process with two threads: ``main(URL, CONNECT_ARGS, NAME, [one_per])``.

It reports its progress on standard output, and reads permission to continue from standard input.
The worker ``victim`` writes in its first block, and stays there until it is killed.  With
``one_per`` each block locks the step of its weight with NOWAIT, which fails if another worker has
the weight.  Some blocks insert another job of their weight before all others.
"""

from __future__ import annotations

import json
import sys
import threading

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions, claim_each
from tests.integration.claims.jobs import NEW, Job, Log, Step, run

THREADS = 2


ALONE = LockOptions.ForUpdate | LockOptions.NoWait


def work(
    factory: sessionmaker[LockingSession],
    name: str,
    lock_timeout: float | None,
    one_per: sa.ColumnElement[int] | None,
) -> None:
    """Run the jobs."""
    claims = claim_each(
        factory, NEW, lock_timeout=lock_timeout, one_per=one_per, until_empty=one_per is not None
    )
    for claim in claims:
        with claim as job:
            if one_per is not None:
                claim.session.get_one_entity(Step, job.weight, ALONE)
                put_before(factory, job)
            run(job)
            claim.session.add(Log(job_id=job.id, worker=name))
            claim.session.flush()
            if name == "victim":
                tell(f"inside {job.id}")
                threading.Event().wait()  # until the process is killed
            tell(f"working on {job.id}")


def put_before(factory: sessionmaker[LockingSession], job: Job) -> None:
    """While some jobs are claimed, commit one of the same weight that sorts before all others."""
    if has_one_before(job.id, factory.kw["bind"].dialect.name):
        with factory.begin() as session:
            session.add(Job(id=-job.id, state="new", weight=job.weight))


def has_one_before(ident: int, database: str) -> bool:
    """Return whether a job sorts before this one; a locked SQLite file allows no such insert."""
    return ident > 0 and ident % 7 == 0 and database != "sqlite"


def tell(line: str) -> None:
    print(line, flush=True)


def main(url: str, connect_args: str, name: str, *ordered: str) -> None:
    engine = sa.create_engine(url, connect_args=json.loads(connect_args))
    # SQLite lets one thread work at a time; the others queue for the file.
    lock_timeout = 30 if engine.dialect.name == "sqlite" else None
    factory = sessionmaker(engine, class_=LockingSession)
    one_per = Job.__table__.c.weight if ordered else None
    failures: list[BaseException] = []

    def run_all(name: str) -> None:
        try:
            work(factory, name, lock_timeout, one_per)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=run_all, args=(f"{name} {number}",)) for number in range(THREADS)
    ]
    if name == "victim":
        threads = [threading.Thread(target=run_all, args=(name,))]
    tell("ready")
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(bool(failures))
