"""Functions for run_transaction that count their runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from sa_doclock import DeadlockDetected, LockingSession
from tests.support.models import Customer

Session = LockingSession
Test = TypeVar("Test", bound=Callable[..., Any])

NAMES = sa.select(Customer.id, Customer.name).order_by(Customer.id)


def own_logic(test: Test) -> Test:
    """Mark a test of what the library decides by itself: one database is enough."""
    pytest.mark.databases("sqlite")(test)
    pytest.mark.not_databases("sqlite-journal")(test)
    return test


def rename(session: Session, name: str) -> None:
    """Write something that everybody can see once it is committed."""
    session.get_one(Customer, 1).name = name
    session.flush()


class Counted:
    """A function that fails with these errors, one in each run, and then returns its runs.

    :param act: what it does before it fails or returns.
    """

    def __init__(
        self, *errors: BaseException, act: Callable[[Session], Any] = lambda _: None
    ) -> None:
        self.errors = list(errors)
        self.act = act
        self.sessions: list[Session] = []

    @property
    def runs(self) -> int:
        """The number of calls."""
        return len(self.sessions)

    def __call__(self, session: Session) -> int:
        self.sessions.append(session)
        self.act(session)
        if self.errors:
            raise self.errors.pop(0)
        return self.runs


def deadlocks(number: int) -> list[DeadlockDetected]:
    """Make as many errors as the library would raise of a server's."""
    return [DeadlockDetected(f"made up, {n}") for n in range(number)]
