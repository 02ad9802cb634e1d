"""A process that locks: ``python -m tests.integration.locking.stopped URL SECONDS``.

It says when it holds the lock, waits for a line on its standard input, and commits; then it says what came
of that.
"""

from __future__ import annotations

import sys

import sqlalchemy as sa

from sa_doclock import LockingSession, LockLost, LockOptions
from tests.support.models import Order


def main(url: str, seconds: float) -> None:
    engine = sa.create_engine(url)
    with LockingSession(engine, hold_limit=seconds) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate).total = 1000
        print("locked", flush=True)
        sys.stdin.readline()
        try:
            session.commit()
        except LockLost:
            print("lost", flush=True)
        else:
            print("committed", flush=True)
    engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
