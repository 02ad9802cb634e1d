"""The owner of the transaction, and its end if the function meddles with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import SessionTransactionOrigin, sessionmaker
from sqlalchemy.orm.exc import DetachedInstanceError

from sa_doclock import DeadlockDetected, LockingSession, LockMisuse, run_transaction
from sa_doclock import LockOptions as Lock
from tests.integration.on_commit.test_after_commit import Promises
from tests.integration.retry.counting import NAMES, Counted, Session, deadlocks, own_logic, rename
from tests.support.models import Customer, Order

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


@own_logic
def test_it_is_opened_and_committed_around_the_function(
    session_factory: Factory, elsewhere: Run
) -> None:
    def work(session: Session) -> str:
        transaction = session.get_transaction()
        assert transaction is not None
        assert transaction.origin is SessionTransactionOrigin.BEGIN
        session.get_one_entity(Order, 1, Lock.ForUpdate).total = 31
        session.save_changes()
        assert session.get_transaction() is transaction
        assert session.held_locks
        with session.locked(Order, 2) as order:
            order.total = 6
        assert session.in_transaction()
        sessions.append(session)
        return "done"

    sessions: list[Session] = []
    assert run_transaction(session_factory, work) == "done"
    assert elsewhere(sa.select(Order.total).order_by(Order.id)) == [(31,), (6,)]
    assert not sessions[0].in_transaction()
    assert not sessions[0].held_locks


@own_logic
def test_a_savepoint_that_was_left_open_is_committed_too(
    session_factory: Factory, elsewhere: Run
) -> None:
    def work(session: Session) -> None:
        session.begin_nested()
        rename(session, "mine")

    run_transaction(session_factory, work)
    assert elsewhere(NAMES)[0] == (1, "mine")


@own_logic
def test_a_failed_flush_that_was_swallowed_is_not_taken_for_success(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, "never")
        session.add(Customer(id=2, name="there already"))
        with pytest.raises(IntegrityError):
            session.flush()

    fn = Counted(act=act)
    with pytest.raises(PendingRollbackError) as caught:
        run_transaction(session_factory, fn)
    assert isinstance(caught.value.__cause__, IntegrityError)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "Ann")


@own_logic
def test_after_its_own_commit_nothing_more_can_be_done(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, "mine")
        session.commit()
        session.get(Customer, 2)

    fn = Counted(act=act)
    with pytest.raises(InvalidRequestError, match="closed transaction inside context manager"):
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "mine")


@own_logic
def test_what_it_has_committed_itself_is_not_committed_twice(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        session.get_one_entity(Order, 1, Lock.ForUpdate).total += 1
        session.commit()

    fn = Counted(*deadlocks(1), act=act)  # as from another session
    with pytest.raises(DeadlockDetected) as caught:
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert caught.value.attempts == 0
    assert run_transaction(session_factory, fn) == 2
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(32,)]


@own_logic
def test_what_it_has_rolled_back_itself_is_not_committed(
    session_factory: Factory, elsewhere: Run
) -> None:
    def act(session: Session) -> None:
        rename(session, "never")
        session.rollback()

    fn = Counted(act=act)
    assert run_transaction(session_factory, fn) == 1
    assert elsewhere(NAMES)[0] == (1, "Ann")


@own_logic
def test_a_deadlock_is_repeated_also_where_it_has_rolled_back_first(
    session_factory: Factory,
) -> None:
    fn = Counted(*deadlocks(1), act=Session.rollback)
    assert run_transaction(session_factory, fn) == 2


@own_logic
def test_an_entity_that_it_returns_is_detached_and_expired(session_factory: Factory) -> None:
    order = run_transaction(session_factory, lambda session: session.get_one(Order, 1))
    with pytest.raises(DetachedInstanceError):
        _ = order.total
    session_factory.configure(expire_on_commit=False)
    order = run_transaction(session_factory, lambda session: session.get_one(Order, 1))
    assert order.total == 30


# --------------------------------------------------------------------------------------------------
# A lent Connection is in someone else's transaction, however the session received it.

Make = Callable[..., LockingSession]
TABLE: Any = Customer.__table__
RENAME = sa.update(Customer).where(Customer.id == 1).values(name="lender")


def by_bind_mapper(lent: sa.Connection, **how: Any) -> LockingSession:
    session = LockingSession(lent.engine, **how)
    session.bind_mapper(Customer, lent)
    return session


def by_bind_table(lent: sa.Connection, **how: Any) -> LockingSession:
    session = LockingSession(lent.engine, **how)
    session.bind_table(TABLE, lent)
    return session


def by_get_bind(lent: sa.Connection, **how: Any) -> LockingSession:
    class Routing(LockingSession):
        def get_bind(self, mapper: Any = None, clause: Any = None) -> sa.Connection:  # type: ignore[override]
            return lent

    return Routing(**how)


MAKERS = [by_bind_mapper, by_bind_table, by_get_bind]


def forget(_: object) -> None:
    """Return None, whatever happened."""


def with_the_connection(lent: sa.Connection) -> Callable[[Session], None]:
    return lambda session: forget(session.connection(bind_arguments={"bind": lent}))


def with_a_statement(lent: sa.Connection) -> Callable[[Session], None]:
    return lambda session: forget(session.scalar(NAMES, bind_arguments={"bind": lent}))


def with_bind_mapper(lent: sa.Connection) -> Callable[[Session], None]:
    return lambda session: session.bind_mapper(Customer, lent)


@pytest.fixture
def lent(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Lend a Connection whose transaction contains a change."""
    with engine.connect() as lent:
        lent.execute(RENAME)
        yield lent


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("make", MAKERS)
def test_its_transaction_is_not_run_again(lent: sa.Connection, elsewhere: Run, make: Make) -> None:
    fn = Counted(*deadlocks(1), act=lambda session: forget(session.get_one(Customer, 1)))
    with pytest.raises(LockMisuse, match="with an open transaction"):
        run_transaction(lambda: make(lent), fn)
    assert lent.in_transaction()
    lent.commit()
    assert elsewhere(NAMES)[0] == (1, "lender")


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("way", [with_the_connection, with_a_statement, with_bind_mapper])
def test_nor_where_the_function_brings_it(
    engine: sa.Engine,
    lent: sa.Connection,
    elsewhere: Run,
    way: Callable[[sa.Connection], Callable[[Session], None]],
) -> None:
    fn = Counted(*deadlocks(1), act=way(lent))
    with pytest.raises(LockMisuse, match="with an open transaction"):
        run_transaction(lambda: LockingSession(engine), fn)
    assert lent.in_transaction()
    lent.commit()
    assert elsewhere(NAMES)[0] == (1, "lender")


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("make", MAKERS)
def test_in_a_savepoint_it_runs_and_is_not_repeated(
    lent: sa.Connection, elsewhere: Run, make: Make
) -> None:
    def factory() -> LockingSession:
        return make(lent, join_transaction_mode="create_savepoint")

    assert run_transaction(factory, lambda session: session.get_one(Customer, 1).name) == "lender"
    failing = Counted(*deadlocks(1), act=lambda session: forget(session.get_one(Customer, 1)))
    with pytest.raises(DeadlockDetected):
        run_transaction(factory, failing)
    assert failing.runs == 1
    lent.commit()
    assert elsewhere(NAMES)[0] == (1, "lender")


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("make", MAKERS)
def test_one_that_is_in_no_transaction_is_the_sessions(
    engine: sa.Engine, elsewhere: Run, make: Make
) -> None:
    def rename(session: Session) -> None:
        session.get_one(Customer, 1).name = "ours"
        session.flush()

    fn = Counted(*deadlocks(1), act=rename)
    with engine.connect() as connection:
        assert run_transaction(lambda: make(connection), fn) == 2
        assert not connection.in_transaction()
    assert elsewhere(NAMES)[0] == (1, "ours")


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
def test_outside_of_run_transaction_it_may_be_lent(lent: sa.Connection) -> None:
    session = LockingSession(lent.engine)
    run_transaction(lambda: session, forget)
    session.bind_mapper(Customer, lent)
    assert session.get_one(Customer, 1).name == "lender"
    session.close()


# --------------------------------------------------------------------------------------------------
# on_commit() functions run once for the attempt that commits, never for another.


@pytest.fixture
def promises() -> Promises:
    return Promises()


@own_logic
def test_it_is_kept_once_by_the_attempt_that_works(
    session_factory: Factory, promises: Promises
) -> None:
    fn = Counted(
        *deadlocks(2), act=lambda session: session.on_commit(promises.note(f"run {fn.runs}"))
    )
    run_transaction(session_factory, fn)
    assert promises.kept == ["run 3"]


@own_logic
def test_it_is_never_kept_when_all_have_failed(
    session_factory: Factory, promises: Promises
) -> None:
    fn = Counted(*deadlocks(2), act=lambda session: session.on_commit(promises.note()))
    with pytest.raises(DeadlockDetected):
        run_transaction(session_factory, fn, attempts=2)
    assert promises.kept == []


@own_logic
def test_a_deadlock_that_it_meets_itself_repeats_nothing(
    session_factory: Factory, elsewhere: Run, promises: Promises
) -> None:
    (error,) = deadlocks(1)

    def act(session: Session) -> None:
        rename(session, f"run {fn.runs}")
        session.on_commit(promises.fail(error))

    fn = Counted(act=act)
    with pytest.raises(DeadlockDetected) as caught:
        run_transaction(session_factory, fn)
    assert caught.value is error
    assert caught.value.attempts == 0
    assert promises.kept == [str(error)]
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "run 1")


@own_logic
def test_nor_does_one_of_a_listener_after_the_commit(
    session_factory: Factory, elsewhere: Run
) -> None:
    def fail(_: Session) -> None:
        raise DeadlockDetected("in a listener")

    event.listen(session_factory, "after_commit", fail)
    fn = Counted(act=lambda session: rename(session, "mine"))
    with pytest.raises(DeadlockDetected, match="in a listener"):
        run_transaction(session_factory, fn)
    assert fn.runs == 1
    assert elsewhere(NAMES)[0] == (1, "mine")


@own_logic
def test_one_of_a_listener_before_the_commit_is_repeated(
    session_factory: Factory, elsewhere: Run
) -> None:
    def fail(_: Session) -> None:
        if fn.runs == 1:
            raise DeadlockDetected("in a listener")

    event.listen(session_factory, "before_commit", fail)
    fn = Counted(act=lambda session: rename(session, f"run {fn.runs}"))
    assert run_transaction(session_factory, fn) == 2
    assert elsewhere(NAMES)[0] == (1, "run 2")


@own_logic
def test_it_may_run_a_transaction_of_its_own(session_factory: Factory, elsewhere: Run) -> None:
    inner = Counted(*deadlocks(1), act=lambda session: rename(session, "inner"))

    def outer(session: Session) -> None:
        session.execute(sa.text("UPDATE lk_customer SET name = 'outer'"))
        session.on_commit(lambda: run_transaction(session_factory, inner))

    run_transaction(session_factory, outer)
    assert inner.runs == 2
    assert elsewhere(NAMES) == [(1, "inner"), (2, "outer")]
