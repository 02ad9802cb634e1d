"""A separate worker process: ``main(URL, OWNER, SECONDS, [KILLED_AT])``.

It leases the first order, reports that it works, waits for permission to continue, saves, and
reports the outcome.  With KILLED_AT it waits for no permission, and kills itself before the
statement with this number.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import CheckoutLost, LockingSession, lease_each
from tests.integration.checkouts.models import CHECKOUTS, Order

TODO = sa.select(Order).where(Order.total == 0)


def tell(line: str) -> None:
    print(line, flush=True)


def kill_at(engine: sa.Engine, number: int) -> None:
    """Kill this process before the statement, COMMIT or ROLLBACK with this number."""
    numbers = count(1)

    def note(*_: object) -> None:
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "commit"):
        event_note = note
        sa.event.listen(engine, name, event_note)


def main(url: str, owner: str, seconds: str, killed_at: str = "") -> None:
    engine = sa.create_engine(url)
    factory = sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS)
    with engine.connect():
        pass  # does not count the engine's first queries
    if killed_at:
        kill_at(engine, int(killed_at))
    try:
        for lease in lease_each(factory, TODO, owner=owner, lease=float(seconds), limit=1):
            with lease:
                tell(f"working {lease.checkout.epoch}")
                if not killed_at:
                    sys.stdin.readline()
                with lease.saving() as row:
                    row.total = lease.checkout.epoch
    except CheckoutLost as error:
        tell(f"lost {error.expected} {error.found}")
    else:
        tell("saved")
