"""Inside a running transaction no retry is possible."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import scoped_session, sessionmaker

from sa_doclock import DeadlockDetected, LockingSession, LockMisuse, run_transaction, transactional
from tests.integration.locking.steps import NAMES as NAMES_SWALLOWED
from tests.integration.retry.counting import (
    NAMES,
    Counted,
    Crossing,
    Session,
    Take,
    by_flush,
    by_lock,
    by_statement,
    deadlocks,
    own_logic,
    rename,
)
from tests.integration.retry.counting import Session as SwallowedSession
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Customer

Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


def new_customer(session: Session) -> None:
    session.add(Customer(id=9, name="new"))


@own_logic
def test_within_the_function_of_another(session_factory: Factory, elsewhere: Run) -> None:
    def outer(session: Session) -> None:
        rename(session, "outer")
        run_transaction(session_factory, new_customer)

    with pytest.raises(LockMisuse, match="inside the function of another run_transaction"):
        run_transaction(session_factory, outer)
    assert elsewhere(NAMES) == [(1, "Ann"), (2, "Ben")]


@own_logic
def test_on_another_database_too(session_factory: Factory) -> None:
    def factory() -> Session:
        raise AssertionError("it was opened")

    def outer(_: Session) -> None:
        transactional(factory)(new_customer)()

    with pytest.raises(LockMisuse, match="again at each retry of the outer one"):
        run_transaction(session_factory, outer)


@own_logic
def test_it_can_be_swallowed_and_the_outer_one_goes_on(
    session_factory: Factory, elsewhere: Run
) -> None:
    def outer(session: Session) -> None:
        rename(session, "outer")
        with pytest.raises(LockMisuse):
            run_transaction(session_factory, new_customer)

    run_transaction(session_factory, outer)
    assert elsewhere(NAMES) == [(1, "outer"), (2, "Ben")]


@own_logic
def test_one_after_the_other_is_fine(session_factory: Factory) -> None:
    failing = Counted(*deadlocks(2))
    with pytest.raises(DeadlockDetected):
        run_transaction(session_factory, failing, attempts=2)
    assert run_transaction(session_factory, Counted()) == 1
    assert run_transaction(session_factory, Counted()) == 1


@own_logic
def test_in_another_thread_it_is_fine(
    session_factory: Factory, bob: Actor[LockingSession], elsewhere: Run
) -> None:
    def outer(_: Session) -> int:
        step = bob.starts(lambda _: run_transaction(session_factory, Counted(act=new_customer)))
        return step.result(PATIENCE)

    assert run_transaction(session_factory, outer) == 1
    assert len(elsewhere(NAMES)) == 3


@own_logic
@pytest.mark.parametrize("fails", [False, True])
def test_a_context_that_has_outlived_the_transaction_is_fine(
    session_factory: Factory, fails: bool
) -> None:
    """Like that of a thread or task that the function started."""
    contexts: list[contextvars.Context] = []
    fn = Counted(*deadlocks(int(fails)), act=lambda _: contexts.append(contextvars.copy_context()))
    with suppress(DeadlockDetected):
        run_transaction(session_factory, fn, attempts=1)
    assert contexts[0].run(run_transaction, session_factory, Counted()) == 1


@pytest.mark.slow
@own_logic
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_it_is_kept_alive(session_factory: Factory, fails: bool) -> None:
    sessions: list[weakref.ref[Session]] = []

    def fn(session: Session) -> None:
        sessions.append(weakref.ref(session))
        if fails:
            raise deadlocks(1)[0]

    with suppress(DeadlockDetected):
        run_transaction(session_factory, fn, attempts=2)
    gc.collect()
    assert len(sessions) == 1 + fails
    assert [session() for session in sessions] == [None] * len(sessions)


# A session that is used by others already


@own_logic
def test_a_session_that_is_in_a_transaction_is_refused(
    session_factory: Factory, elsewhere: Run
) -> None:
    fn = Counted()
    with session_factory() as session:
        session.add(Customer(id=9, name="theirs"))
        with pytest.raises(LockMisuse, match="needs a new session for every attempt"):
            run_transaction(lambda: session, fn)
        session.commit()  # it was left alone
    assert fn.runs == 0
    assert elsewhere(NAMES)[2:] == [(9, "theirs")]


@own_logic
def test_so_is_a_scoped_one_that_was_used_before(session_factory: Factory, elsewhere: Run) -> None:
    scope = scoped_session(session_factory)
    scope.get(Customer, 1)
    with pytest.raises(LockMisuse):
        run_transaction(scope, new_customer)
    scope.remove()
    run_transaction(scope, new_customer)
    assert run_transaction(scope, Counted(*deadlocks(2))) == 3  # closed, it is like new
    scope.remove()
    assert len(elsewhere(NAMES)) == 3


@own_logic
def test_so_is_a_session_on_a_connection_that_is_in_a_transaction(
    engine: sa.Engine, elsewhere: Run
) -> None:
    with engine.connect() as connection:
        connection.execute(sa.update(Customer).values(name="theirs"))
        with pytest.raises(LockMisuse):
            run_transaction(lambda: LockingSession(connection), new_customer)
        connection.commit()
    assert elsewhere(NAMES) == [(1, "theirs"), (2, "theirs")]


@own_logic
def test_of_a_connection_that_is_not_it_begins_the_transaction(
    engine: sa.Engine, elsewhere: Run
) -> None:
    fn = Counted(*deadlocks(1), act=new_customer)
    with engine.connect() as connection:
        assert run_transaction(lambda: LockingSession(connection), fn) == 2
        assert not connection.in_transaction()
    assert len(elsewhere(NAMES)) == 3


@own_logic
def test_in_the_savepoints_of_a_test_suite_it_runs_and_is_not_repeated(
    engine: sa.Engine, elsewhere: Run
) -> None:
    """After a deadlock the transaction around the savepoint may be gone, and it is not ours."""
    how: dict[str, Any] = {"join_transaction_mode": "create_savepoint"}
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")  # sqlite3 does not send it
        factory = sessionmaker(connection, class_=LockingSession, **how)
        run_transaction(factory, new_customer)
        failing = Counted(*deadlocks(1))
        with pytest.raises(DeadlockDetected):
            run_transaction(factory, failing)
        assert failing.runs == 1
        connection.rollback()
    assert len(elsewhere(NAMES)) == 2


@own_logic
def test_a_factory_whose_sessions_are_lent_one_connection_of_several(
    engine: sa.Engine, elsewhere: Run
) -> None:
    with engine.connect() as lent, lent.begin():
        lent.execute(sa.insert(Customer).values(id=9, name="caller"))
        factory = sessionmaker(binds={Customer: lent}, class_=LockingSession)
        with pytest.raises(LockMisuse, match="with an open transaction"):
            run_transaction(factory, new_customer)
        assert lent.in_transaction()
    assert (9, "caller") in elsewhere(NAMES)


# --------------------------------------------------------------------------------------------------
# A function swallows the deadlock and continues: none of its work reaches the database.

Player = Actor[LockingSession]

INSERT = sa.text("INSERT INTO lk_customer (id, name) VALUES (9, 'escaped')")


def insert_raw(session: SwallowedSession) -> None:
    session.execute(INSERT)


def insert_by_connection(session: SwallowedSession) -> None:
    session.connection().execute(INSERT)


def insert_by_flush(session: SwallowedSession) -> None:
    session.add(Customer(id=9, name="escaped"))
    session.flush()


def commit_after_insert(session: SwallowedSession) -> None:
    session.add(Customer(id=9, name="escaped"))
    session.commit()


def renamed(ident: int, name: str) -> sa.Update:
    return sa.update(Customer).where(Customer.id == ident).values(name=name)


LATER = (insert_raw, insert_by_connection, insert_by_flush, commit_after_insert)


def swallowing(crossing: Crossing, take: Take, *later: Callable[[SwallowedSession], None]) -> Take:
    """Lock the row; after a deadlock continue with the rest, swallowing further errors."""

    def run(session: SwallowedSession, ident: int) -> None:
        try:
            take(session, ident)
        except DeadlockDetected:
            for act in later:
                with pytest.raises(InvalidRequestError) as caught:  # a PendingRollbackError is one
                    act(session)
                crossing.refused.append(caught.value)

    return run


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.parametrize("take", [by_lock, by_flush, by_statement])
def test_nothing_escapes_and_the_whole_is_run_again(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run, take: Take
) -> None:
    crossing = Crossing(take)
    crossing._take_second = swallowing(crossing, take, *LATER)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert len(crossing.refused) == len(LATER)
    assert "escaped" not in str(elsewhere(NAMES_SWALLOWED))


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.parametrize("take", [by_lock, by_flush, by_statement])
def test_nor_is_it_taken_for_done_when_the_function_just_returns(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run, take: Take
) -> None:
    crossing = Crossing(take)
    crossing._take_second = swallowing(crossing, take)
    insert = [
        sa.insert(Customer).values(id=11, name="1"),
        sa.insert(Customer).values(id=12, name="2"),
    ]

    def insert_then_take(session: SwallowedSession, ident: int) -> None:
        session.execute(insert[ident - 1])
        take(session, ident)

    crossing._take = insert_then_take
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert elsewhere(NAMES_SWALLOWED)[2:] == [(11, "1"), (12, "2")]


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.parametrize("take", [by_flush, by_statement])
def test_what_follows_may_come_out_and_the_whole_is_run_again(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run, take: Take
) -> None:
    crossing = Crossing(take)

    def take_and_go_on(session: SwallowedSession, ident: int) -> None:
        try:
            take(session, ident)
        except DeadlockDetected as error:
            crossing.refused.append(error)
            insert_raw(session)

    crossing._take_second = take_and_go_on
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.refused) == 1
    assert "escaped" not in str(elsewhere(NAMES_SWALLOWED))


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_what_follows_has_its_cause_when_it_comes_out(
    alice: Player, bob: Player, session_factory: Factory
) -> None:
    crossing = Crossing(by_flush)
    crossing._take_second = swallowing(crossing, by_flush)
    came = crossing.play(alice, bob, session_factory, attempts=1)
    (failure,) = [one for one in came if isinstance(one, BaseException)]
    assert type(failure) is PendingRollbackError
    assert isinstance(failure.__cause__, DeadlockDetected)
    assert "(given up after 1 attempt)" in str(failure)


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
def test_an_error_that_the_function_makes_of_it_comes_out(
    alice: Player, bob: Player, session_factory: Factory
) -> None:
    crossing = Crossing(by_statement)

    def explain(session: SwallowedSession, ident: int) -> None:
        try:
            by_statement(session, ident)
        except DeadlockDetected as error:
            raise LookupError("busy") from error

    crossing._take_second = explain
    came = crossing.play(alice, bob, session_factory)
    assert sorted(type(one).__name__ for one in came) == ["LookupError", "int"]
    assert len(crossing.runs) == 2


@pytest.mark.not_databases("sqlite")
@pytest.mark.read_committed
@pytest.mark.databases("mysql", "mariadb")
def test_in_a_plain_session_it_would_have_escaped(
    alice: Player, bob: Player, engine: sa.Engine, elsewhere: Run
) -> None:
    """The counterpart: the end of the transaction is in the database, its beginning is not."""
    meeting = threading.Barrier(2)

    def write_both(name: str, mine: int, theirs: int) -> None:
        with PlainSession(engine) as session:
            session.execute(renamed(mine, name))
            meeting.wait(PATIENCE)
            try:
                session.execute(renamed(theirs, name))
            except DBAPIError:
                session.execute(INSERT)
            session.commit()

    steps = [
        alice.starts(lambda _: write_both("alice", 1, 2)),
        bob.starts(lambda _: write_both("bob", 2, 1)),
    ]
    for step in steps:
        step.result()
    names = elsewhere(NAMES_SWALLOWED)
    assert names[2:] == [(9, "escaped")]
    assert len({name for _, name in names[:2]}) == 1  # the winner's
