"""A listener that writes down what it hears of locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from sa_doclock import LockFailed, LockOptions
from sa_doclock.events import ReleasedLock

NAMES = ("lock_acquired", "lock_failed", "locks_released")


class Heard:
    """The events that listeners received, in order, each with its session."""

    def __init__(self) -> None:
        self.acquired: list[tuple[Any, LockOptions]] = []
        self.failed: list[LockFailed] = []
        self.released: list[tuple[list[tuple[Any, LockOptions]], str]] = []
        self.waits: list[float | None] = []
        self.held: list[float] = []
        self.sessions: list[Session] = []

    @property
    def names(self) -> tuple[int, int, int]:
        """The number of events of each of the three kinds."""
        return len(self.acquired), len(self.failed), len(self.released)

    def lock_acquired(
        self, session: Session, document: Any, lock: LockOptions, waited: float
    ) -> None:
        self.sessions.append(session)
        self.acquired.append((document, lock))
        self.waits.append(waited)

    def lock_failed(self, session: Session, error: LockFailed, waited: float | None) -> None:
        self.sessions.append(session)
        self.failed.append(error)
        self.waits.append(waited)

    def locks_released(
        self, session: Session, released: Sequence[ReleasedLock], outcome: str
    ) -> None:
        self.sessions.append(session)
        self.released.append(([(one.document, one.lock) for one in released], outcome))
        self.held += [one.held for one in released]


@contextmanager
def hearing(target: Any) -> Iterator[Heard]:
    """Listen in the block."""
    heard = Heard()
    for name in NAMES:
        event.listen(target, name, getattr(heard, name))
    yield heard
    for name in NAMES:
        event.remove(target, name, getattr(heard, name))
