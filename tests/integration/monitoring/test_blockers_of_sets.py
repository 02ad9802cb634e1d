"""The blockers of several rows, or of any, are named, and the session itself is not."""

from __future__ import annotations

import pytest

from sa_doclock import LockingSession
from tests.integration.locking.steps import locks
from tests.integration.monitoring.steps import (
    KNOWS_HOLDERS,
    NO_WAIT,
    ON_SERVERS,
    blockers,
    ids,
    up_to_date,
)
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Order, Voucher

pytestmark = ON_SERVERS
Session = Actor[LockingSession]


def test_of_many_keys_the_holders_of_any_are_reported(
    database: Database, alice: Session, bob: Session, asker: LockingSession
) -> None:
    alice.does(locks(Voucher, (2024, 1)))
    bob.does(locks(Voucher, (2024, 2)))
    both = ids(alice, bob)
    found = up_to_date(
        database,
        lambda: blockers(asker, Voucher, (2024, 1), (2024, 2), (2024, 3)),
        lambda found: set(found) == both,
    )
    assert set(found) == both
    assert {one.certain for one in found.values()} == {KNOWS_HOLDERS[database.name]}


def test_of_a_set_those_who_hold_rows_of_its_table_may_be_it(
    database: Database, alice: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 2))
    mine = ids(alice)
    found = up_to_date(database, lambda: blockers(asker, Order), lambda found: set(found) == mine)
    assert set(found) == mine
    assert [one.certain for one in found.values()] == [False]


@pytest.mark.databases("postgresql", "mysql")
def test_who_holds_rows_of_other_tables_is_not_reported(
    alice: Session, bob: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 2))
    bob.does(locks(Customer, 1))
    assert set(blockers(asker, Order)) == ids(alice)


@pytest.mark.read_committed
def test_the_session_itself_is_not_reported(
    database: Database, alice: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 2))
    mine = ids(alice)

    def ask() -> set[int]:
        asker.begin()
        asker.get_one_entity(Order, 1, NO_WAIT)
        return set(blockers(asker, Order))

    assert up_to_date(database, ask, lambda found: found == mine) == mine
