"""The demo's first scene: two requests change one order at the same moment."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from .. import LockingSession, LockOptions
from .workload import Detail, Document, State, fill

WAIT = 30.0
"""Seconds that a request waits for the other to have read the order too, before it writes.

The worst timing, every time: also where the other is slow to get its connection.
"""

WAIT_WITH_LOCK = 0.5
"""With a lock the other cannot come."""

ORDER = 1
BEFORE: State = {"N0": 10, "N1": 5}
ADDED = 7
SAME_LINE = ("N2", "N2")
TWO_LINES = ("N2", "N3")


@dataclass(frozen=True)
class Clicks:
    """The state of the order after two requests.

    :ivar errors: the classes of the errors that requests ended with.
    """

    errors: tuple[str, ...]
    total: int
    lines: State

    @property
    def fine(self) -> bool:
        """Both requests ended well, and the total is right."""
        return not self.errors and self.total == sum(self.lines.values())


def click_twice(engine: Engine, lock: LockOptions, names: tuple[str, str]) -> Clicks:
    """Let two requests, each in its session, add the lines of these names at once."""
    fill(engine, {ORDER: BEFORE})
    both_have_read = Barrier(2)
    # Of a declared document, the guard would refuse what is written without the lock.
    sessions = sessionmaker(engine, class_=LockingSession, guard="raise" if lock else "off")
    with ThreadPoolExecutor(2) as requests:
        submits = [
            requests.submit(_add_line, sessions(), lock, name, both_have_read) for name in names
        ]
    with LockingSession(engine) as session:
        order = session.get_one_entity(Document, ORDER)
        return Clicks(_errors_of(submits), order.total, order.values())


def _add_line(
    session: LockingSession, lock: LockOptions, name: str, both_have_read: Barrier
) -> None:
    with session:
        order = session.get_one_entity(Document, ORDER, lock)
        missing = name not in order.values()
        with suppress(BrokenBarrierError):
            both_have_read.wait(WAIT_WITH_LOCK if lock else WAIT)
        if missing:
            order.details.append(Detail(name=name, value=ADDED))
            order.add_up()
        session.save_changes()


def _errors_of(submits: list[Future[None]]) -> tuple[str, ...]:
    return tuple(type(error).__name__ for submit in submits if (error := submit.exception()))
