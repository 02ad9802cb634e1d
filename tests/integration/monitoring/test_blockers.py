"""LockNotAvailable.blockers: the connections that hold the row which was not to be had."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import locks, roll_back
from tests.integration.monitoring.steps import (
    KNOWS_HOLDERS,
    ON_SERVERS,
    blockers,
    ids,
    insert_order_77,
    lock_table,
    refused,
    unlock_table,
    up_to_date,
)
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Lease, Order, Ticket, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.quick, ON_SERVERS]
Session = Actor[LockingSession]
SHARED = LockOptions.SharedRead


@pytest.mark.parametrize("entity", [Order, Lease, Ticket, Voucher])
def test_the_holder_is_reported(
    database: Database, alice: Session, asker: LockingSession, entity: type[Any]
) -> None:
    ident = (2024, 1) if entity is Voucher else 1
    alice.does(locks(entity, ident))
    mine = ids(alice)
    found = up_to_date(
        database, lambda: blockers(asker, entity, ident), lambda found: set(found) == mine
    )
    assert set(found) == mine
    (holder,) = found.values()
    assert holder.certain is KNOWS_HOLDERS[database.name]
    assert holder.user == sa.make_url(database.url).username
    assert holder.application is None
    assert holder.state == "idle in transaction"
    assert holder.transaction_seconds is not None
    assert holder.transaction_seconds >= 0
    if database.name == "mariadb":  # it does not keep what is over
        assert holder.statement is None
    else:
        assert f"FROM {entity.__tablename__}" in str(holder.statement) or entity is Lease


@pytest.mark.databases("mysql")
def test_who_inserted_the_row_is_reported(alice: Session, asker: LockingSession) -> None:
    alice.does(insert_order_77)
    assert set(blockers(asker, Order, 77)) == ids(alice)


def test_the_text_says_it_too(database: Database, alice: Session, asker: LockingSession) -> None:
    alice.does(locks(Order, 1))
    (mine,) = ids(alice)
    error = up_to_date(
        database, lambda: refused(asker, Order, 1), lambda error: f"connection {mine}" in str(error)
    )
    perhaps = "" if KNOWS_HOLDERS[database.name] else "perhaps "
    start = rf"Order 1 FOR UPDATE NOWAIT on {database.name}: held by another transaction; [^;]*; "
    reported = rf"{perhaps}held by connection {mine} \(user \w+, (host \S+, )?idle in transaction, its transac"
    assert re.match(start + reported, str(error)), str(error)
    assert re.fullmatch(start.removesuffix("; "), error.reason), error.reason
    assert not re.search("SELECT|SQL:|parameters", error.reason)


@pytest.mark.databases("postgresql", "mysql")
def test_the_name_of_its_program_is_reported(
    dave: Callable[..., Session],
    make_engine: Callable[..., sa.Engine],
    asker: LockingSession,
    applications: dict[str, Any],
) -> None:
    holder = dave(sessionmaker(make_engine(**applications), class_=LockingSession))
    holder.does(locks(Order, 1))
    assert [one.application for one in blockers(asker, Order, 1).values()] == ["billing"]
    assert "application 'billing'" in str(refused(asker, Order, 1))


def test_one_who_is_at_work_is_active(
    database: Database, alice: Session, bob: Session, asker: LockingSession
) -> None:
    bob.does(locks(Order, 2))
    alice.does(locks(Order, 1))
    queued = alice.starts(locks(Order, 2))
    wait_until_blocked(waiter=alice, holder=bob, step=queued)
    (mine,) = ids(alice)
    found = up_to_date(
        database, lambda: blockers(asker, Order, 1), lambda found: found[mine].statement
    )
    assert found[mine].state == "active"
    assert "FOR UPDATE" in str(found[mine].statement)
    bob.does(roll_back)
    queued.result()


def test_all_who_share_it_are_reported(
    database: Database, alice: Session, bob: Session, asker: LockingSession
) -> None:
    for actor in (alice, bob):
        actor.does(locks(Order, 1, SHARED))
    both = ids(alice, bob)
    found = up_to_date(
        database, lambda: blockers(asker, Order, 1), lambda found: set(found) == both
    )
    assert set(found) == both
    assert {one.certain for one in found.values()} == {KNOWS_HOLDERS[database.name]}


@pytest.mark.databases("postgresql", "mysql")
def test_who_holds_another_row_is_not_reported(
    alice: Session, bob: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    assert set(blockers(asker, Order, 1)) == ids(alice)
    assert set(blockers(asker, Order, 2)) == ids(bob)


@pytest.mark.databases("mariadb")
def test_mariadb_is_certain_only_while_another_waits_for_the_row(
    database: Database, alice: Session, bob: Session, carol: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 1))
    carol.does(locks(Order, 2))
    two = ids(alice, carol)
    guess = up_to_date(database, lambda: blockers(asker, Order, 1), lambda found: set(found) == two)
    assert {one: party.certain for one, party in guess.items()} == dict.fromkeys(two, False)
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    found = blockers(asker, Order, 1)
    assert {one: party.certain for one, party in found.items()} == dict.fromkeys(ids(alice), True)
    alice.does(roll_back)
    queued.result()


@pytest.mark.databases("mysql", "postgresql")
def test_who_waits_in_front_does_not_hold_it(
    alice: Session, bob: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    assert set(blockers(asker, Order, 1)) == ids(alice)
    alice.does(roll_back)
    queued.result()


@pytest.mark.databases("mysql", "postgresql")
def test_a_reader_is_not_notified_of_other_readers(
    alice: Session, bob: Session, asker: LockingSession
) -> None:
    alice.does(locks(Order, 1, SHARED))
    bob.does(locks(Order, 2))
    assert set(blockers(asker, Order, 1, 2, lock=SHARED | LockOptions.NoWait)) == ids(bob)
    assert set(blockers(asker, Order, 1, 2)) == ids(alice, bob)


def test_who_has_locked_the_table_is_reported(
    database: Database, alice: Session, asker: LockingSession
) -> None:
    alice.does(lock_table)
    mine = ids(alice)
    found = up_to_date(
        database,
        # PostgreSQL's NOWAIT is about rows alone
        lambda: blockers(asker, Order, 1, lock=LockOptions.ForUpdate, lock_timeout=0.01),
        lambda found: set(found) == mine,
    )
    alice.does(unlock_table)
    assert set(found) == mine
    assert {one.certain for one in found.values()} == {KNOWS_HOLDERS[database.name]}


@pytest.mark.databases("mysql")
def test_who_keeps_others_out_of_a_table_without_a_lock_of_innodb_is_reported(
    alice: Session, asker: LockingSession
) -> None:
    flush = sa.text("FLUSH TABLES lk_order WITH READ LOCK")
    alice.does(lambda session: session.connection().execute(flush) and None)
    found = blockers(asker, Order, 1, lock=LockOptions.ForUpdate, lock_timeout=0.01)
    mine = ids(alice)
    alice.does(unlock_table)
    assert {one: party.certain for one, party in found.items()} == dict.fromkeys(mine, True)
