"""Functions for run_transaction that count their runs, or deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from sa_doclock import DeadlockDetected, LockingSession, LockOptions, run_transaction
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Customer, Order

# --------------------------------------------------------------------------------------------------
# Functions for run_transaction() that count their runs.

Session = LockingSession
Test = TypeVar("Test", bound=Callable[..., Any])

NAMES = sa.select(Customer.id, Customer.name).order_by(Customer.id)


def own_logic(test: Test) -> Test:
    """Mark a test of the library's own decisions: one database is enough."""
    pytest.mark.databases("sqlite")(test)
    pytest.mark.not_databases("sqlite-journal")(test)
    return test


def rename(session: Session, name: str) -> None:
    """Write a value that is visible to all once it is committed."""
    session.get_one(Customer, 1).name = name
    session.flush()


class Counted:
    """A function that fails with these errors, one per run, and then returns its number of runs.

    :param act: its action before it fails or returns.
    """

    def __init__(
        self, *errors: BaseException, act: Callable[[Session], Any] = lambda _: None
    ) -> None:
        self.errors = list(errors)
        self.act = act
        self.sessions: list[Session] = []

    @property
    def runs(self) -> int:
        return len(self.sessions)

    def __call__(self, session: Session) -> int:
        self.sessions.append(session)
        self.act(session)
        if self.errors:
            raise self.errors.pop(0)
        return self.runs


def deadlocks(number: int) -> list[DeadlockDetected]:
    """Make this many errors like those the library raises for a server's."""
    return [DeadlockDetected(f"made up, {n}") for n in range(number)]


# --------------------------------------------------------------------------------------------------
# Two transactions that always deadlock in the first run, and never when one runs again.
#
# In its first run each locks a row, waits until the other has locked its own, and requests the
# other's.  It does not matter which one the server ends: run_transaction runs both.  The victim
# runs again when the other is done: PostgreSQL would let it overtake the waiter for its row.

T = TypeVar("T")
Take = Callable[[Session, int], Any]


def by_lock(session: Session, ident: int) -> None:
    """Lock the row with a lock call."""
    session.get_one_entity(Order, ident, LockOptions.ForUpdate)


def by_flush(session: Session, ident: int) -> None:
    """Lock the row by changing it."""
    session.get_one(Customer, ident).name = "flushed"
    session.flush()


def by_statement(session: Session, ident: int) -> None:
    """Lock the row with a statement of the program."""
    session.execute(sa.update(Customer).where(Customer.id == ident).values(name="updated"))


def by_text(session: Session, ident: int) -> None:
    """Lock the row with SQL text that the library does not parse."""
    text = "SELECT id FROM lk_customer WHERE id = :id FOR UPDATE"
    if session.get_bind().dialect.name == "mssql":
        text = "SELECT id FROM lk_customer WITH (UPDLOCK, ROWLOCK) WHERE id = :id"
    session.execute(sa.text(text), {"id": ident}).all()  # unread, the connection would be busy


class Crossing:
    """The crosswise steps of alice and bob."""

    def __init__(self, take: Take, take_second: Take | None = None) -> None:
        self.runs: list[tuple[int, Session]] = []
        self.refused: list[BaseException] = []
        self._take, self._take_second = take, take_second or take
        self._meeting, self._one_is_done = threading.Barrier(2), threading.Event()

    def fn(self, mine: int, theirs: int) -> Callable[[Session], int]:
        """Make the function that locks its own row, then the other's; it returns its own key."""
        first = True

        def run(session: Session) -> int:
            nonlocal first
            self.runs.append((mine, session))
            if not first:
                assert self._one_is_done.wait(PATIENCE)
            self._take(session, mine)
            if first:
                first = False
                self._meeting.wait(PATIENCE)
            self._take_second(session, theirs)
            return mine

        return run

    def play(
        self, alice: Actor[Session], bob: Actor[Session], make: Callable[[], Session], **how: Any
    ) -> list[int | BaseException]:
        """Run both to their ends; return the result or the error of each."""

        def run(fn: Callable[[Session], int]) -> int:
            try:
                return run_transaction(make, fn, **how)
            finally:
                self._one_is_done.set()

        first, second = self.fn(1, 2), self.fn(2, 1)
        steps = [alice.starts(lambda _: run(first)), bob.starts(lambda _: run(second))]
        return [step.exception() or step.result() for step in steps]
