"""A lock that was taken inside of a savepoint is held by the connection all the same.

PostgreSQL gives each savepoint a transaction number of its own, and forgets whose it was when the
savepoint is released.
"""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession
from tests.integration.locking.steps import locks
from tests.integration.monitoring.steps import KNOWS_HOLDERS, ON_SERVERS, blockers, ids, up_to_date
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [ON_SERVERS, pytest.mark.read_committed]
Session = Actor[LockingSession]


def open_savepoint(session: LockingSession) -> None:
    session.begin()
    session.begin_nested()


def release_savepoint(session: LockingSession) -> None:
    savepoint = session.get_nested_transaction()
    assert savepoint is not None
    savepoint.commit()


def test_the_holder_is_reported_while_the_savepoint_is_open_and_after(
    database: Database, alice: Session, asker: LockingSession
) -> None:
    alice.does(open_savepoint)
    alice.does(locks(Order, 1))
    mine = ids(alice)
    for _ in range(2):
        found = up_to_date(
            database, lambda: blockers(asker, Order, 1), lambda found: set(found) == mine
        )
        assert {one: party.certain for one, party in found.items()} == dict.fromkeys(
            mine, KNOWS_HOLDERS[database.name]
        )
        if alice.does(lambda session: session.in_nested_transaction()):
            alice.does(release_savepoint)


@pytest.mark.databases("postgresql")
def test_of_a_released_savepoint_it_may_be_any_that_writes_to_the_table(
    alice: Session, bob: Session, carol: Session, asker: LockingSession
) -> None:
    alice.does(open_savepoint)
    alice.does(locks(Order, 1))
    alice.does(release_savepoint)
    bob.does(locks(Order, 2))
    carol.does(locks(Customer, 1))
    found = blockers(asker, Order, 1)
    both = ids(alice, bob)
    assert {one: party.certain for one, party in found.items()} == dict.fromkeys(both, False)


@pytest.mark.databases("postgresql")
def test_an_update_in_a_savepoint_behind_a_lock_is_reported(
    alice: Session, bob: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 1))
    alice.does(lambda session: session.begin_nested() and None)
    alice.does(lambda session: setattr(session.get_one(Order, 1), "total", 31))
    alice.does(lambda session: session.flush())
    alice.does(release_savepoint)
    bob.does(locks(Order, 2))
    assert {
        one: party.certain for one, party in blockers(asker, Order, 1).items()
    } == dict.fromkeys(ids(alice), True)
