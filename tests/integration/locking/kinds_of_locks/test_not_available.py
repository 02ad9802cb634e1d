"""NoWait and lock_timeout: the result of giving up, and of a lock under an older snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, WrongIsolation
from tests.integration.locking.connections import set_patience
from tests.integration.locking.expectations import (
    FINE,
    GOES_ON,
    LOCK_AFTER_SELECT,
    READER_AFTER_WRITER,
    REFUSED,
    WAITS,
    on,
)
from tests.integration.locking.steps import (
    Seen,
    add_ten,
    locks,
    move_five,
    read_again,
    reads,
    save,
)
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Lease, Order, Voucher
from tests.support.poolers import SETS_CONNECTION
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

SharedRead, NoWait = LockOptions.SharedRead, LockOptions.NoWait


# --------------------------------------------------------------------------------------------------
# NoWait and lock_timeout give up on a held lock, and the error names the limit.

ForUpdate = LockOptions.ForUpdate

#: The ways not to wait: the tests' connections would wait longer than an actor's patience.
IMPATIENCE: dict[str, tuple[LockOptions, dict[str, Any], str]] = {
    "NoWait": (ForUpdate | NoWait, {}, "held by another transaction"),
    "zero": (ForUpdate, {"lock_timeout": 0}, "held by another transaction"),
    "0.2 s": (ForUpdate, {"lock_timeout": 0.2}, "not granted within 0.2 s"),
}


@pytest.mark.parametrize(("lock", "how", "why"), IMPATIENCE.values(), ids=IMPATIENCE.keys())
def test_what_another_holds_is_given_up(
    session: LockingSession,
    other: LockingSession,
    lock: LockOptions,
    how: dict[str, Any],
    why: str,
) -> None:
    other.get_entity(Voucher, (2024, 1), ForUpdate)
    with pytest.raises(LockNotAvailable) as caught:
        session.get_entity(Voucher, (2024, 1), lock, **how)
    assert not session.in_transaction()
    assert not session.held_locks
    error = caught.value
    assert (error.entity, error.ident) == (Voucher, (2024, 1))
    assert error.lock is not None
    assert ForUpdate in error.lock
    assert error.retryable
    assert isinstance(error, sa.exc.OperationalError)
    assert isinstance(error.orig, session.get_bind().dialect.loaded_dbapi.Error)
    assert re.match(rf"Voucher \(2024, 1\) FOR UPDATE( NOWAIT)? on \w+: {why}", str(error))


def test_the_session_can_go_on_at_once(session: LockingSession, other: LockingSession) -> None:
    other.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | NoWait)
    other.release_locks()
    assert session.get_one_entity(Order, 1, ForUpdate | NoWait).total == 30
    session.save_changes()


def test_a_row_in_two_tables_is_given_up(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_entity(Lease, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match=f"^Lease 1 FOR UPDATE on {database.name}: not gran"):
        session.get_entity(Lease, 1, ForUpdate, lock_timeout=timedelta(milliseconds=1))


def test_a_lock_that_is_free_is_granted(session: LockingSession) -> None:
    assert session.get_one_entity(Order, 1, ForUpdate | NoWait).total == 30
    session.release_locks()
    assert session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0.001).total == 30


def test_a_lock_that_comes_free_in_time_is_granted(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(add_ten)
    queued = bob.starts(reads(lock_timeout=29.5))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == (40, [20, 20])


@on(READER_AFTER_WRITER, WAITS)
@pytest.mark.parametrize(
    ("lock", "how"), [(SharedRead | NoWait, {}), (SharedRead, {"lock_timeout": 0.2})]
)
def test_a_reader_gives_up_as_well(
    session: LockingSession, other: LockingSession, lock: LockOptions, how: dict[str, Any]
) -> None:
    other.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match="Order 1 SHARED READ"):
        session.get_entity(Order, 1, lock, **how)


@on(READER_AFTER_WRITER, GOES_ON)
def test_a_reader_that_need_not_wait_gets_what_it_asked(
    session: LockingSession, other: LockingSession
) -> None:
    add_ten(other)
    assert reads(SharedRead | NoWait)(session) == (30, [10, 20])
    session.rollback()
    assert reads(SharedRead, lock_timeout=0.2)(session) == (30, [10, 20])


def test_a_set_gives_up_as_a_whole(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_entity(Order, 2, ForUpdate)
    with pytest.raises(LockNotAvailable, match=f"Order rows FOR UPDATE NOWAIT on {database.name}"):
        session.scalars(session.entity_set(Order, ForUpdate | NoWait)).all()
    assert not session.in_transaction()


@SETS_CONNECTION
def test_the_servers_own_limit_is_reported(
    engine: sa.Engine, session: LockingSession, make_session: Callable[..., LockingSession]
) -> None:
    set_patience(engine, 1)
    other = make_session()
    other.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match="not granted within the server's own limit"):
        session.get_entity(Order, 1, ForUpdate)


# --------------------------------------------------------------------------------------------------
# The header's row is locked first: one statement for two tables shows stale data from the second.
#
# These tests run no library code. They justify the rule, and fail when a server changes.

Session = Actor[LockingSession]

FRESH, STALE = True, False
_HEADER_FIRST = "FROM lk_contract c STRAIGHT_JOIN lk_lease l ON l.id = c.id WHERE c.id IN (1, 99)"
_HEADER_LAST = "FROM lk_lease l STRAIGHT_JOIN lk_contract c ON l.id = c.id WHERE l.id IN (1, 99)"

#: Whether a statement that waited for a writer shows the writer's new rent.
SHOWN: Mapping[str, Mapping[str, bool]] = {
    # The server rereads only the row that it waited for, and not the joined row.
    "postgresql": {"FROM lk_contract c JOIN lk_lease l USING (id) FOR UPDATE OF c": STALE},
    # The snapshot opens at the first row read without a lock: the optimizer decides.
    "mysql": {f"{_HEADER_FIRST} FOR UPDATE OF c": FRESH, f"{_HEADER_LAST} FOR UPDATE OF c": STALE},
    # Without OF, the row of the other table is locked as well.
    "mariadb": {f"{_HEADER_FIRST} FOR UPDATE": FRESH, f"{_HEADER_LAST} FOR UPDATE": FRESH},
}


def raise_rent(session: LockingSession) -> int:
    """Lock the contract, and change only its second row; return the earlier rent."""
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


# --------------------------------------------------------------------------------------------------
# A lock that waited, under a snapshot taken before the wait: fresh, or refused.
#
# A fresh header over stale details is the result of InnoDB's REPEATABLE READ if any plain
# SELECT came before the lock, and of PostgreSQL's if the other session changed only details.

Step = Callable[[LockingSession], Any]

WRITERS = [(add_ten, (40, [20, 20])), (move_five, (30, [15, 15]))]
writers = pytest.mark.parametrize(("write", "expected"), WRITERS, ids=["add_ten", "move_five"])


def load_a_customer(session: LockingSession) -> Customer:
    """Load a customer first, as a web request does."""
    return session.get_one(Customer, 1)


@writers
def test_the_lock_comes_first(alice: Session, bob: Session, write: Step, expected: Seen) -> None:
    alice.does(write)
    queued = bob.starts(reads(ForUpdate))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert bob.does(read_again) == expected


@on(READER_AFTER_WRITER, WAITS)
@writers
def test_a_reader_comes_first(alice: Session, bob: Session, write: Step, expected: Seen) -> None:
    alice.does(write)
    queued = bob.starts(reads(SharedRead))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert bob.does(read_again) == expected


@on(LOCK_AFTER_SELECT, FINE)
@writers
def test_a_select_before_the_lock(
    alice: Session, bob: Session, write: Step, expected: Seen
) -> None:
    known = bob.does(load_a_customer)
    alice.does(write)
    queued = bob.starts(reads(ForUpdate))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert known.name == "Ann"


@on(LOCK_AFTER_SELECT, REFUSED)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_a_select_before_the_lock_is_refused(session: LockingSession, lock: LockOptions) -> None:
    load_a_customer(session)
    with pytest.raises(WrongIsolation, match=r"Order 1 .* is open at REPEATABLE READ"):
        session.get_entity(Order, 1, lock)
    with pytest.raises(WrongIsolation, match=r"Order rows .* is open at REPEATABLE READ"):
        session.scalars(session.entity_set(Order, lock))
    assert load_a_customer(session).name == "Ann"  # nothing sent: the transaction continues


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def strict_session_factory(
    make_engine: Callable[..., sa.Engine], request: pytest.FixtureRequest
) -> sessionmaker[LockingSession]:
    """Return a factory on an engine whose isolation level is too strict for a lock."""
    return sessionmaker(make_engine(isolation_level=request.param), class_=LockingSession)


@pytest.mark.not_databases("sqlite")  # it has one level
@writers
def test_the_lock_comes_first_on_a_strict_engine(
    alice: Session,
    dave: Callable[..., Session],
    strict_session_factory: Callable[[], LockingSession],
    write: Step,
    expected: Seen,
) -> None:
    strict = dave(strict_session_factory)
    alice.does(write)
    queued = strict.starts(reads(ForUpdate))
    wait_until_blocked(waiter=strict, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected


@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_a_select_before_the_lock_on_a_strict_engine_is_refused(
    strict_session_factory: Callable[[], LockingSession], lock: LockOptions
) -> None:
    with strict_session_factory() as session:
        load_a_customer(session)
        with pytest.raises(WrongIsolation):
            session.get_entity(Order, 1, lock)


@writers
def test_a_select_before_the_lock_at_read_committed(
    alice: Session,
    dave: Callable[..., Session],
    make_engine: Callable[..., sa.Engine],
    read_committed: dict[str, Any],
    write: Step,
    expected: Seen,
) -> None:
    engine = make_engine(**read_committed)
    careful = dave(sessionmaker(engine, class_=LockingSession))
    known = careful.does(load_a_customer)
    alice.does(write)
    queued = careful.starts(reads(ForUpdate))
    wait_until_blocked(waiter=careful, holder=alice, step=queued)
    alice.does(save)
    assert queued.result() == expected
    assert known.name == "Ann"
