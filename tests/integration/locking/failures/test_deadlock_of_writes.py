"""Deadlocks that no lock call meets: a flush, a statement of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

from sa_doclock import DeadlockDetected, LockingSession
from tests.integration.locking.crosswise import NAMES, cross, rename, write
from tests.support.actors import Actor
from tests.support.models import Customer

pytestmark = [
    pytest.mark.not_databases("sqlite"),  # the file's lock is one
    pytest.mark.read_committed,
]

Session = Actor[LockingSession]
Run = Callable[..., list[Any]]


def test_a_deadlock_at_flush(alice: Session, bob: Session, elsewhere: Run) -> None:
    alice.does(rename(1, "alice"))
    bob.does(rename(2, "bob"))
    loser, failure, winner, step = cross(alice, bob, lambda ident: rename(ident, "crossed"))
    assert isinstance(failure, DeadlockDetected)
    assert str(failure).startswith(f"the transaction on {alice.database.name}: ")
    with pytest.raises(PendingRollbackError):
        loser.does(write)
    step.result()
    winner.does(lambda session: session.rollback())
    loser.does(lambda session: session.rollback())
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]


def test_a_deadlock_of_a_plain_statement(alice: Session, bob: Session, elsewhere: Run) -> None:
    def rename_by_statement(ident: int) -> Callable[[LockingSession], Any]:
        statement = sa.update(Customer).where(Customer.id == ident).values(name="crossed")
        return lambda session: session.execute(statement)

    alice.does(rename(1, "alice"))
    bob.does(rename(2, "bob"))
    loser, failure, winner, step = cross(alice, bob, rename_by_statement)
    assert isinstance(failure, DeadlockDetected)
    with pytest.raises(PendingRollbackError):
        loser.does(write)
    step.result()
    winner.does(lambda session: session.rollback())
    loser.does(lambda session: session.rollback())
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]
