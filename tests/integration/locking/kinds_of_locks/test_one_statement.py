"""The header's own row is locked first: one statement for two tables shows an old second one.

These tests run no code of ours. They are the reason for it, and fail when a server changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import locks, save
from tests.support.actors import Actor
from tests.support.models import Lease
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

Session = Actor[LockingSession]

FRESH, STALE = True, False
_HEADER_FIRST = "FROM lk_contract c STRAIGHT_JOIN lk_lease l ON l.id = c.id WHERE c.id IN (1, 99)"
_HEADER_LAST = "FROM lk_lease l STRAIGHT_JOIN lk_contract c ON l.id = c.id WHERE l.id IN (1, 99)"

#: Whether a statement shows the rent as a writer has left it for whom the statement waited.
SHOWN: Mapping[str, Mapping[str, bool]] = {
    # Only the row that was waited for is read again, not the one that is joined to it.
    "postgresql": {"FROM lk_contract c JOIN lk_lease l USING (id) FOR UPDATE OF c": STALE},
    # The snapshot opens at the first row that is read without a lock: the optimizer decides.
    "mysql": {f"{_HEADER_FIRST} FOR UPDATE OF c": FRESH, f"{_HEADER_LAST} FOR UPDATE OF c": STALE},
    # There is no OF: the row of the other table is locked as well.
    "mariadb": {f"{_HEADER_FIRST} FOR UPDATE": FRESH, f"{_HEADER_LAST} FOR UPDATE": FRESH},
}


def raise_rent(session: LockingSession) -> int:
    """Lock the contract, and change nothing but its second row; return what was there before."""
    lease = session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    before, lease.rent = lease.rent, lease.rent + 100
    session.flush()
    return before


def rent_by(statement: str) -> Callable[[LockingSession], int]:
    """Make the step that locks and reads in one statement, and ends its transaction."""

    def step(session: LockingSession) -> int:
        session.connection(execution_options={"isolation_level": "READ COMMITTED"})
        rent: int = session.scalars(sa.text(f"SELECT l.rent {statement}")).one()
        session.rollback()
        return rent

    return step


@pytest.mark.databases(*SHOWN)
def test_one_statement_for_two_tables(alice: Session, bob: Session) -> None:
    for statement, fresh in SHOWN[bob.database.name].items():
        before = alice.does(raise_rent)
        queued = bob.starts(rent_by(statement))
        wait_until_blocked(waiter=bob, holder=alice, step=queued)
        alice.does(save)
        assert queued.result() == (before + 100 if fresh else before), statement


def test_ours_shows_both_as_they_are(alice: Session, bob: Session) -> None:
    alice.does(raise_rent)
    queued = bob.starts(locks(Lease, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result().rent == 200


def lease_set(session: LockingSession) -> list[int]:
    return [
        lease.rent for lease in session.scalars(session.entity_set(Lease, LockOptions.ForUpdate))
    ]


def test_ours_shows_both_in_a_set(alice: Session, bob: Session) -> None:
    alice.does(raise_rent)
    queued = bob.starts(lease_set)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == [200]


@pytest.mark.not_databases("sqlite")
def test_ours_leaves_the_row_of_the_subclass_alone(
    session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.get_one_entity(Lease, 1, LockOptions.ForUpdate)
    elsewhere(sa.update(Lease.__table__).values(rent=300))  # type: ignore[arg-type]
