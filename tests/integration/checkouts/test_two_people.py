"""Two people want to edit one order: one gets it, the other learns who has it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    CheckedOut,
    Checkout,
    CheckoutLost,
    LockingSession,
    LockOptions,
    UnlockedWrite,
    WrongIsolation,
)
from tests.integration.checkouts.models import CHECKOUTS, Article, Memo, Order, epochs, expire
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.not_databases("sqlite-journal")
own_logic = pytest.mark.databases("sqlite", "postgresql")
ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
MINUTE = timedelta(minutes=1)


def checked_out(session: LockingSession, owner: str = "ann", ident: int = 1) -> Checkout:
    """Check an order out, and commit."""
    checkout = session.check_out(Order, ident, owner, note="editing")
    session.commit()
    return checkout


def take(block: Any) -> Any:
    """Enter and leave the block."""
    with block as found:
        return found


WAYS: dict[str, Callable[..., Any]] = {
    "get_entity": lambda s, **how: s.get_entity(Order, 1, ForUpdate, **how),
    "get_one_entity": lambda s, **how: s.get_one_entity(Order, 1, ForUpdate, **how),
    "get_document": lambda s, **how: s.get_document(Order, 1, ForUpdate | NoWait, **how),
    "get_one_document": lambda s, **how: s.get_one_document(Order, 1, ForUpdate, **how),
    "locked": lambda s, **how: take(s.locked(Order, 1, **how)),
    "locked object": lambda s, **how: take(s.locked(s.get_one(Order, 1), **how)),
    "locked select": lambda s, **how: take(s.locked(sa.select(Order).filter_by(id=1), **how)),
    "locked_document": lambda s, **how: take(s.locked_document(Order, 1, **how)),
}
FOR_ALL: dict[str, Callable[..., Any]] = {
    "lock": lambda s: s.lock(s.get_one(Order, 1)),
    "get_entities": lambda s: s.get_entities(Order, [2, 1], ForUpdate),
    "locked_documents": lambda s: take(s.locked_documents(Order, [2, 1])),
    "entity_set": lambda s: s.scalars(s.entity_set(Order, ForUpdate)).all(),
    "adopted": lambda s: s.scalars(sa.select(Order).with_for_update()).all(),
    "adopted get": lambda s: s.get(Order, 1, with_for_update=True),
}


def test_the_second_learns_who_has_it(session: LockingSession, other: LockingSession) -> None:
    mine = checked_out(session)
    with pytest.raises(CheckedOut, match="'ann' has it checked out since") as caught:
        other.check_out(Order, 1, "bob")
    assert caught.value.checkout == mine
    assert (caught.value.entity, caught.value.ident) == (Order, 1)
    assert not caught.value.retryable
    assert not other.in_transaction()
    assert mine.until - mine.since == timedelta(minutes=15)
    assert (mine.owner, mine.epoch, mine.note) == ("ann", 1, "editing")


@own_logic
@pytest.mark.parametrize("way", [*WAYS.values(), *FOR_ALL.values()], ids=[*WAYS, *FOR_ALL])
def test_no_lock_of_another_is_granted(
    session: LockingSession, other: LockingSession, way: Callable[..., Any]
) -> None:
    mine = checked_out(session)
    with pytest.raises(CheckedOut, match="'ann'") as caught:
        way(other)
    assert caught.value.checkout == mine
    assert caught.value.ident == 1
    assert not other.held_locks


@own_logic
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_owner_locks_by_the_epoch(
    session: LockingSession, other: LockingSession, way: Callable[..., Any]
) -> None:
    mine = checked_out(session)
    assert way(session, checkout=mine).id == 1
    session.rollback()
    assert way(other, checkout=mine.epoch).id == 1
    other.rollback()
    other.take_over(Order, 1, "bob")
    other.commit()
    with pytest.raises(CheckoutLost, match="'bob' has it since") as caught:
        way(session, checkout=mine)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    assert not session.held_locks


def test_what_is_refused_cannot_be_written(session: LockingSession, other: LockingSession) -> None:
    checked_out(session)
    with pytest.raises(UnlockedWrite), other.begin():  # noqa: PT012  # the commit is refused
        order = other.get_one(Order, 1)
        for way in FOR_ALL.values():
            with pytest.raises(CheckedOut):
                way(other)
        assert not other.held_locks
        order.total = 7


def test_reads_and_other_classes_never_ask(session: LockingSession, other: LockingSession) -> None:
    checked_out(session)
    assert other.get_one_entity(Order, 1).id == 1
    assert other.get_one(Order, 1).id == 1
    other.rollback()
    assert take(other.locked_document(Order, 1, SharedRead)).id == 1
    assert take(other.locked(Memo, 1)).id == 1
    assert take(other.locked(Order, 2)).id == 2


def test_a_double_click_renews(session: LockingSession, engine: sa.Engine) -> None:
    first = checked_out(session)
    again = session.check_out(Order, 1, "ann", lease=timedelta(hours=1))
    session.commit()
    assert (again.epoch, again.since, again.note) == (1, first.since, "editing")
    assert again.until > first.until + 44 * MINUTE
    assert epochs(engine) == [1]


def test_expiry_frees(session: LockingSession, other: LockingSession, engine: sa.Engine) -> None:
    mine = checked_out(session)
    expire(engine)
    assert session.checkout_of(Order, 1) is None
    assert session.checkouts() == []
    assert [one.expired for one in session.checkouts(expired=True)] == [True]
    assert take(other.locked(Order, 1)).id == 1
    assert take(session.locked(Order, 1, checkout=mine)).id == 1  # not taken over since
    theirs = checked_out(other, "bob")
    assert theirs.epoch == 2
    with pytest.raises(CheckoutLost, match="epoch 2"):
        take(session.locked(Order, 1, checkout=mine))
    session.rollback()
    with pytest.raises(CheckoutLost) as caught:
        session.renew(mine)
    assert (caught.value.expected, caught.value.found) == (1, 2)
    assert not session.in_transaction()


def test_the_same_owner_after_the_expiry_has_another_epoch(
    session: LockingSession, engine: sa.Engine
) -> None:
    checked_out(session)
    expire(engine)
    assert checked_out(session).epoch == 2


def test_a_renewal_after_the_expiry_is_good(session: LockingSession, engine: sa.Engine) -> None:
    mine = checked_out(session)
    expire(engine)
    again = session.renew(mine, timedelta(minutes=1))
    session.commit()
    assert (again.epoch, again.since, again.lease) == (1, mine.since, MINUTE)
    found = session.checkout_of(Order, 1)
    assert found == again
    assert session.renew(again).lease == MINUTE  # the same lease as before


def test_a_document_that_is_checked_in_is_free(
    session: LockingSession, other: LockingSession
) -> None:
    mine = checked_out(session)
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate, checkout=mine).total = 5
        session.check_in(mine)
    assert session.checkout_of(Order, 1) is None
    assert session.checkouts(expired=True) == []
    session.rollback()
    for refused in (
        lambda: session.check_in(mine),
        lambda: session.renew(mine),
        lambda: take(session.locked(Order, 1, checkout=mine)),
    ):
        with pytest.raises(CheckoutLost, match="was checked in") as caught:
            refused()
        assert (caught.value.expected, caught.value.found) == (1, None)
        assert not session.in_transaction()
    assert checked_out(other, "bob").epoch == 2


def test_a_rollback_undoes_it(
    session: LockingSession, other: LockingSession, engine: sa.Engine
) -> None:
    session.check_out(Order, 1, "ann")
    session.rollback()
    assert epochs(engine) == []
    with session.begin():
        with session.begin_nested() as savepoint:
            assert session.check_out(Order, 1, "ann").epoch == 1
            savepoint.rollback()
        assert session.get_entity(Order, 1, ForUpdate) is not None  # not checked out
    with session.begin():
        session.get_entity(Order, 1, ForUpdate)
        with session.begin_nested() as savepoint:
            undone = session.check_out(Order, 1, "ann")
            assert session.get_entity(Order, 1, ForUpdate, checkout=undone) is not None
            savepoint.rollback()
        with pytest.raises(CheckoutLost):
            session.get_entity(Order, 1, ForUpdate, checkout=undone)
    mine = checked_out(session)
    with session.begin():
        assert session.take_over(Order, 1, "ann").epoch == 2
        session.rollback()
    assert other.checkout_of(Order, 1) == mine


def test_a_take_over_by_the_same_owner_ends_the_check_out_before(session: LockingSession) -> None:
    mine = checked_out(session)
    assert session.take_over(Order, 1, "ann").epoch == 2
    session.commit()
    with pytest.raises(CheckoutLost):
        session.check_in(mine)


def test_a_list_of_check_outs(session: LockingSession, engine: sa.Engine) -> None:
    one = checked_out(session, "ann", 1)
    two = checked_out(session, "bob", 2)
    three = session.check_out(Article, "ABC", "ann")
    session.commit()
    listed = session.checkouts()
    times = [checkout.since for checkout in listed]
    assert times == sorted(times)
    assert set(listed) == {one, two, three}  # two within one millisecond have no order
    assert set(session.checkouts(owner="ann")) == {one, three}
    assert set(session.checkouts(Order)) == {one, two}
    assert session.checkouts(Article, owner="bob") == []
    expire(engine)
    session.rollback()
    assert {one.ident for one in session.checkouts(Order, expired=True)} == {1, 2}


def test_a_key_is_that_of_the_row(session: LockingSession, other: LockingSession) -> None:
    found = other.get_entity(Article, "abc")  # the collation may ignore case
    session.check_out(Article, "ABC", "ann")
    session.commit()
    if found is None:
        assert other.checkout_of(Article, "abc") is None
    else:
        assert other.checkout_of(Article, "abc") is not None
        other.rollback()
        with pytest.raises(CheckedOut):
            other.check_out(Article, "abc", "bob")


def test_one_row_for_a_document(session: LockingSession, engine: sa.Engine) -> None:
    mine = checked_out(session)
    for _ in range(3):
        mine = session.renew(mine)
        session.commit()
        session.check_in(mine)
        session.commit()
        mine = checked_out(session)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(CHECKOUTS)).mappings().all()
    assert len(rows) == 1
    assert (rows[0]["document"], rows[0]["ident"], rows[0]["epoch"]) == ("co_orders", "1", 4)


@pytest.mark.not_databases("sqlite")
def test_of_two_at_once_one_gets_it(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(lambda s: s.check_out(Order, 1, "alice"))
    second = bob.starts(lambda s: s.check_out(Order, 1, "bob"))
    wait_until_blocked(waiter=bob, holder=alice, step=second)
    alice.does(lambda s: s.commit())
    with pytest.raises(CheckedOut) as caught:
        second.result()
    assert caught.value.checkout is not None
    assert caught.value.checkout.owner == "alice"


@pytest.mark.not_databases("sqlite")
def test_who_takes_over_waits_for_the_lock(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    mine = alice.does(checked_out)
    alice.does(lambda s: s.get_entity(Order, 1, ForUpdate, checkout=mine))
    second = bob.starts(lambda s: s.take_over(Order, 1, "bob"))
    wait_until_blocked(waiter=bob, holder=alice, step=second)
    alice.does(lambda s: s.renew(mine))  # locks no header row
    alice.does(lambda s: s.commit())
    assert second.result().epoch == 2
    bob.does(lambda s: s.commit())
    with pytest.raises(CheckoutLost):
        alice.does(lambda s: s.get_entity(Order, 1, ForUpdate, checkout=mine))


@pytest.mark.not_databases("sqlite")
def test_who_waited_for_the_lock_sees_a_check_out_that_came_meanwhile(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(lambda s: s.check_out(Order, 1, "alice"))
    adopted = sa.select(Order).where(Order.id == 1).with_for_update()
    second = bob.starts(lambda s: s.scalars(adopted).all())
    wait_until_blocked(waiter=bob, holder=alice, step=second)
    alice.does(lambda s: s.commit())
    with pytest.raises(CheckedOut):
        second.result()


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_an_adopted_lock_at_a_snapshot(engine: sa.Engine, session: LockingSession) -> None:
    """A plain read of its transaction would miss a check-out made after its begin."""
    level = engine.execution_options(isolation_level="REPEATABLE READ")
    factory = sessionmaker(level, class_=LockingSession, checkouts=CHECKOUTS)
    with factory() as other:
        other.get_one(Memo, 1)  # opens the snapshot
        checked_out(session)
        with pytest.raises(WrongIsolation, match="open at REPEATABLE READ"):
            other.scalars(sa.select(Order).with_for_update()).all()
        assert not other.held_locks


def test_a_renewal_does_not_wait_for_the_lock(
    factory: sessionmaker[LockingSession], database: Database
) -> None:
    if database.name == "sqlite":
        pytest.skip("a lock is one on the whole file")
    with factory() as holder, factory() as renewing:
        mine = checked_out(renewing)
        holder.get_one_entity(Order, 1, ForUpdate, checkout=mine)
        assert renewing.renew(mine).epoch == 1
        renewing.commit()


def test_a_lease_may_be_long(session: LockingSession) -> None:
    mine = session.check_out(Order, 1, "ann", lease=timedelta(days=30))
    assert mine.until - mine.since == timedelta(days=30)
    with pytest.raises(ValueError, match="100 years"):
        session.check_out(Order, 1, "ann", lease=timedelta(days=36_600))


def test_one_that_has_expired_is_found_if_it_is_asked_for(
    session: LockingSession, engine: sa.Engine
) -> None:
    mine = session.check_out(Order, 1, "ann")
    session.commit()
    expire(engine)
    assert session.checkout_of(Order, 1) is None
    found = session.checkout_of(Order, 1, expired=True)
    assert found is not None
    assert (found.epoch, found.expired) == (mine.epoch, True)
    session.check_in(found)
    assert session.checkout_of(Order, 1, expired=True) is None
