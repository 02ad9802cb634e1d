"""A process that works, with two threads:
``python -m tests.integration.claims.worker URL CONNECT_ARGS NAME``, the arguments as JSON.

It tells on its standard output how far it is, and is told on its standard input to go on. The
worker ``victim`` stays in its first block, where it has written, until it is killed.
"""

from __future__ import annotations

import json
import sys
import threading

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, claim_each
from tests.integration.claims.jobs import NEW, Log, run

THREADS = 2


def work(factory: sessionmaker[LockingSession], name: str, lock_timeout: float | None) -> None:
    """Run the jobs that come up."""
    for claim in claim_each(factory, NEW, lock_timeout=lock_timeout):
        with claim as job:
            run(job)
            claim.session.add(Log(job_id=job.id, worker=name))
            claim.session.flush()
            if name == "victim":
                tell(f"inside {job.id}")
                threading.Event().wait()  # for the end
            tell(f"working on {job.id}")


def tell(line: str) -> None:
    print(line, flush=True)


def main(url: str, connect_args: str, name: str) -> None:
    engine = sa.create_engine(url, connect_args=json.loads(connect_args))
    # SQLite lets one work at a time; the others queue for the file.
    lock_timeout = 30 if engine.dialect.name == "sqlite" else None
    factory = sessionmaker(engine, class_=LockingSession)
    threads = [
        threading.Thread(target=work, args=(factory, f"{name} {number}", lock_timeout))
        for number in range(THREADS)
    ]
    if name == "victim":
        threads = [threading.Thread(target=work, args=(factory, name, lock_timeout))]
    tell("ready")
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
