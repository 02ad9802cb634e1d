"""A failed try of a batch session loses nothing that its transaction did before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError

import sa_doclock.features.batch
from sa_doclock import DeadlockDetected, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.core.transaction import error_translation
from tests.integration.locking.steps import cross, finds_held, locks
from tests.integration.timeouts.ways import WAYS, Way
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Customer, Lease, Line, Order

pytestmark = pytest.mark.read_committed

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Run = Callable[..., list[Any]]
each_way = pytest.mark.parametrize("way", [WAYS["get_entity"], WAYS["set of two tables"]])


@pytest.fixture
def batch(engine: sa.Engine) -> Iterator[Session]:
    with Session(engine, priority="batch") as session:
        yield session


@pytest.fixture
def let_go_after(other: Session, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[float]]:
    """Return a function that rolls back ``other`` at the batch's n-th pause."""

    def prepare(number: int) -> list[float]:
        pauses: list[float] = []

        def pause(seconds: float, **_: object) -> None:
            pauses.append(seconds)
            if len(pauses) == number:
                other.rollback()

        monkeypatch.setattr(sa_doclock.features.batch, "pause", pause)
        return pauses

    return prepare


def hold(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.get_one_entity(Lease, 1, ForUpdate)


def work(session: Session) -> None:
    """Write a row, lock a document, and leave a change unflushed."""
    session.add(Customer(id=9, name="written"))
    session.flush()
    session.get_one_entity(Order, 2, ForUpdate).total = 6
    session.flush()
    session.add(Customer(id=10, name="pending"))


@pytest.mark.not_databases("sqlite")
@each_way
def test_what_was_written_and_locked_before_stays(
    batch: Session,
    other: Session,
    elsewhere: Run,
    let_go_after: Callable[[int], list[float]],
    session: Session,
    way: Way,
) -> None:
    hold(other)
    pauses = let_go_after(3)
    with batch.begin():
        work(batch)
        assert way(batch)
        assert len(pauses) == 3
        assert [one.name for one in batch.new] == ["pending"]
        assert (Order, (2,)) in batch.held_locks
        assert finds_held(Order, 2)(session)
    totals = sa.select(Customer.id, Customer.name).where(Customer.id > 8).order_by(Customer.id)
    assert elsewhere(totals) == [(9, "written"), (10, "pending")]
    assert elsewhere(sa.select(Order.total).where(Order.id == 2)) == [(6,)]


@pytest.mark.not_databases("sqlite")
@each_way
def test_a_savepoint_of_the_callers_is_left_alone(
    batch: Session, other: Session, let_go_after: Callable[[int], list[float]], way: Way
) -> None:
    hold(other)
    let_go_after(2)
    batch.begin()
    work(batch)
    with batch.begin_nested():
        batch.add(Customer(id=11, name="inside"))
        batch.flush()
        way(batch)
    savepoint = batch.begin_nested()
    batch.add(Customer(id=12, name="undone"))
    batch.flush()
    savepoint.rollback()
    batch.commit()
    names = sa.select(Customer.id).where(Customer.id > 8).order_by(Customer.id)
    assert batch.scalars(names).all() == [9, 10, 11]


@pytest.mark.not_databases("sqlite")
@each_way
def test_what_is_given_up_leaves_the_transaction_refusing(
    batch: Session, other: Session, session: Session, elsewhere: Run, way: Way
) -> None:
    hold(other)
    batch.begin()
    work(batch)
    with pytest.raises(LockNotAvailable, match="not granted within"):
        way(batch, lock_timeout=0.03)
    with pytest.raises(sa.exc.PendingRollbackError):
        batch.commit()
    assert list(batch.held_locks) == [(Order, (2,))]
    assert finds_held(Order, 2)(session)  # held until the rollback
    batch.rollback()
    assert not batch.held_locks
    assert elsewhere(sa.select(Customer.id).where(Customer.id > 8)) == []


@pytest.mark.not_databases("sqlite")
def test_a_savepoint_gives_up_what_failed_in_it(batch: Session, other: Session) -> None:
    hold(other)
    batch.begin()
    work(batch)
    with pytest.raises(LockNotAvailable), batch.begin_nested():
        batch.get_entity(Order, 1, ForUpdate, lock_timeout=0.03)
    batch.commit()
    assert batch.get_one(Customer, 10).name == "pending"


#: Whether a batch releases the locks of a failed try: as the first statement of the transaction,
#: and later. An InnoDB savepoint keeps its locks, unless it comes first.
GIVES_BACK = {
    "postgresql": (True, True),
    "mysql": (True, False),
    "mariadb": (True, False),
    "mssql": (True, True),  # by "ROLLBACK TRANSACTION", https://learn.microsoft.com/sql/t-sql/
}


@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("worked_before", [False, True])
def test_some_rows_that_it_got_are_given_back(
    database: Database,
    batch: Session,
    other: Session,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    worked_before: bool,
) -> None:
    """Order 1 is free and order 2 is not: others must not wait for 1 while the batch pauses."""
    other.get_one_entity(Order, 2, ForUpdate)
    held: list[bool] = []

    def look(*_: Any, **__: Any) -> None:
        held.append(finds_held(Order, 1)(session))
        if len(held) == 2:
            other.rollback()

    monkeypatch.setattr(sa_doclock.features.batch, "pause", look)
    with batch.begin():
        if worked_before:
            batch.add(Customer(id=9, name="written"))
            batch.flush()
        assert len(batch.get_entities(Order, [1, 2], ForUpdate)) == 2
    gives_back = GIVES_BACK[database.name][worked_before]
    assert held == [not gives_back] * 2


@pytest.mark.not_databases("sqlite")
def test_a_deadlock_of_two_batches_cannot_be(
    engine: sa.Engine, dave: Callable[..., Actor[Session]]
) -> None:
    """Neither waits, so one or both give up."""
    one, two = (dave(lambda: Session(engine, priority="batch")) for _ in range(2))
    one.does(locks(Order, 1))
    two.does(locks(Order, 2))
    steps = (
        one.starts(locks(Order, 2, lock_timeout=0.1)),
        two.starts(locks(Order, 1, lock_timeout=0.1)),
    )
    failures = [step.exception() for step in steps]
    assert all(isinstance(failure, LockNotAvailable) for failure in failures)
    for actor in (one, two):
        actor.does(lambda session: session.rollback())


@pytest.mark.not_databases("sqlite")
def test_a_deadlock_of_its_writes_is_reported_as_ever(
    engine: sa.Engine, dave: Callable[..., Actor[Session]]
) -> None:
    def write(ident: int) -> Callable[[Session], None]:
        def step(session: Session) -> None:
            # By its key: without an index SQL Server waits for the lines of the other order.
            line = {1: 1, 2: 3}[ident]
            session.execute(sa.update(Line).where(Line.id == line).values(value=1))

        return step

    one, two = (dave(lambda: Session(engine, priority="batch")) for _ in range(2))
    one.does(locks(Order, 1))
    two.does(locks(Order, 2))
    one.does(write(1))
    two.does(write(2))
    _, failure, _, step = cross(one, two, write)
    assert isinstance(failure, DeadlockDetected)
    step.result()
    for actor in (one, two):
        actor.does(lambda session: session.rollback())


@pytest.mark.not_databases("sqlite")
def test_on_commit_functions_are_kept(
    batch: Session, other: Session, let_go_after: Callable[[int], list[float]]
) -> None:
    called: list[str] = []
    hold(other)
    let_go_after(2)
    with batch.begin():
        batch.on_commit(lambda: called.append("before"))
        batch.get_one_entity(Order, 1, ForUpdate).total = 31
        batch.on_commit(lambda: called.append("after"))
    assert called == ["before", "after"]


# --------------------------------------------------------------------------------------------------
# A refusal ends the whole transaction, as on MariaDB with innodb_rollback_on_timeout.


@pytest.fixture
def ended_by_refusal(
    make_session: Callable[..., LockingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold order 2 until its first refusal, which ends the transaction."""
    holder = make_session()
    holder.get_one_entity(Order, 2, ForUpdate)

    def has_ended(_states: object, met: error_translation.DriverError) -> bool:
        held = holder.in_transaction()
        if held:
            met.connection.connection.rollback()
            holder.rollback()
        return held

    monkeypatch.setattr(error_translation, "_has_ended", has_ended)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("ended_by_refusal")
def test_what_was_done_before_is_gone_and_nothing_is_tried_again(
    engine: sa.Engine,
) -> None:
    with LockingSession(engine, priority="batch") as batch:
        batch.get_one_entity(Order, 1, ForUpdate).total += 1
        batch.flush()
        with pytest.raises(LockNotAvailable):
            batch.get_one_entity(Order, 2, ForUpdate)
        with pytest.raises(PendingRollbackError, match="at the server"):
            batch.commit()
        batch.rollback()
        assert batch.get_one_entity(Order, 1, ForUpdate).total == 30


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("ended_by_refusal")
def test_a_call_that_has_opened_the_transaction_goes_on_in_a_new_one(
    engine: sa.Engine,
) -> None:
    with LockingSession(engine, priority="batch") as batch:
        order = batch.get_one_entity(Order, 2, ForUpdate)
        order.total += 1
        batch.save_changes()
        assert not batch.held_locks
