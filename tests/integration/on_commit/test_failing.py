"""on_commit: a failing function undoes nothing, and stops no other function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError, PendingRollbackError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, UnsavedChanges
from tests.integration.locking.steps import finds_held
from tests.integration.on_commit.test_after_commit import Promises
from tests.support.databases import Database
from tests.support.models import Customer, Order

ForUpdate = LockOptions.ForUpdate
Session = LockingSession
Run = Callable[..., list[Any]]
TOTAL = sa.select(Order.total).where(Order.id == 1)


@pytest.fixture
def promises() -> Promises:
    return Promises()


def commit(session: Session) -> None:
    session.commit()


def save(session: Session) -> None:
    session.save_changes()


@pytest.mark.read_committed
@pytest.mark.parametrize("end", [commit, save])
def test_the_first_error_comes_out_of_the_commit_which_is_done(
    session: Session,
    other: Session,
    elsewhere: Run,
    promises: Promises,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[Session], None],
) -> None:
    first, second = LookupError("first"), OSError("second")
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    for function in (
        promises.note("a"),
        promises.fail(first),
        promises.note("b"),
        promises.fail(second),
        promises.note("c"),
    ):
        session.on_commit(function)
    with caplog.at_level(logging.ERROR, "sa_doclock"), pytest.raises(LookupError) as caught:
        end(session)
    assert caught.value is first
    assert promises.kept == ["a", "first", "b", "second", "c"]
    (record,) = caplog.records
    assert record.name == "sa_doclock"
    assert record.exc_info is not None
    assert record.exc_info[1] is second
    assert "failing" in record.getMessage()
    assert elsewhere(TOTAL) == [(31,)]
    assert not finds_held()(other)


@pytest.mark.read_committed
def test_a_single_error_is_not_logged(
    session: Session, promises: Promises, caplog: pytest.LogCaptureFixture
) -> None:
    session.on_commit(promises.fail(LookupError("only")))
    with pytest.raises(LookupError, match="only"):
        session.commit()
    assert caplog.records == []


def in_begin(session: Session, work: Callable[[], None]) -> None:
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        work()


def in_locked(session: Session, work: Callable[[], None]) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
        work()


def by_commit(session: Session, work: Callable[[], None]) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 31
    work()
    session.commit()


WAYS = (in_begin, in_locked, by_commit)


@pytest.mark.read_committed
@pytest.mark.parametrize("way", WAYS)
def test_the_session_goes_on_with_its_next_transaction(
    session: Session,
    elsewhere: Run,
    promises: Promises,
    way: Callable[[Session, Callable[[], None]], None],
) -> None:
    error = LookupError("no mail today")
    with pytest.raises(LookupError) as caught:
        way(session, lambda: session.on_commit(promises.fail(error)))
    assert caught.value is error
    assert elsewhere(TOTAL) == [(31,)]
    assert not session.in_transaction()
    assert not session.held_locks
    session.get_one_entity(Order, 1, ForUpdate).total = 32
    session.on_commit(promises.note("the next"))
    session.commit()
    assert promises.kept == ["no mail today", "the next"]
    assert elsewhere(TOTAL) == [(32,)]


@pytest.mark.read_committed
def test_within_begin_the_session_itself_cannot_be_used(session: Session, other: Session) -> None:
    found: list[int] = []

    def look() -> None:
        with pytest.raises(InvalidRequestError, match="inside context manager"):
            session.get(Order, 2)
        found.append(other.get_one(Order, 2).total)  # a separate session can

    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate)
        session.on_commit(look)
    assert found == [5]
    assert session.get_one(Order, 2).total == 5


@pytest.mark.read_committed
def test_elsewhere_it_begins_its_next_transaction(
    session: Session, elsewhere: Run, promises: Promises
) -> None:
    def go_on() -> None:
        session.get_one_entity(Order, 1, ForUpdate).total += 1
        session.on_commit(promises.note("the next"))
        session.save_changes()

    session.get_one_entity(Order, 1, ForUpdate).total = 31
    session.on_commit(go_on)
    session.commit()
    assert promises.kept == ["the next"]
    assert not session.in_transaction()
    assert elsewhere(TOTAL) == [(32,)]


INTERRUPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


@pytest.mark.read_committed
@pytest.mark.parametrize("interruption", INTERRUPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_an_interruption_stops_no_other_and_comes_out_before_any_error(
    session: Session,
    other: Session,
    elsewhere: Run,
    promises: Promises,
    caplog: pytest.LogCaptureFixture,
    way: Callable[[Session, Callable[[], None]], None],
    interruption: type[BaseException],
) -> None:
    stop, first, second = interruption("stop"), LookupError("first"), OSError("second")

    def register() -> None:
        for function in (
            promises.fail(first),
            promises.fail(stop),
            promises.note("a"),
            promises.fail(second),
            promises.note("b"),
        ):
            session.on_commit(function)

    with caplog.at_level(logging.ERROR, "sa_doclock"), pytest.raises(interruption) as caught:
        way(session, register)
    assert caught.value is stop
    assert promises.kept == ["first", "stop", "a", "second", "b"]
    assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [first, second]
    assert elsewhere(TOTAL) == [(31,)]
    assert not session.in_transaction()
    assert not finds_held()(other)
    session.commit()
    assert len(promises.kept) == 5


@pytest.mark.read_committed
def test_of_several_interruptions_the_first_comes_out(
    session: Session, promises: Promises, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (KeyboardInterrupt("first"), SystemExit("second"), KeyboardInterrupt("third")):
        session.on_commit(promises.fail(error))
    with (
        caplog.at_level(logging.ERROR, "sa_doclock"),
        pytest.raises(KeyboardInterrupt, match="first"),
    ):
        session.commit()
    assert promises.kept == ["first", "second", "third"]
    assert len(caplog.records) == 2


# --------------------------------------------------------------------------------------------------
# on_commit() does not run functions when the commit fails.


@pytest.mark.read_committed
def test_a_commit_whose_flush_fails_is_none(session: Session, promises: Promises) -> None:
    session.begin()
    session.on_commit(promises.note())
    session.add(Customer(id=1, name="there already"))
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []


@pytest.mark.read_committed
def test_a_block_whose_commit_fails_is_none(session: Session, promises: Promises) -> None:
    def work() -> None:
        with session.locked(Order, 1):
            session.on_commit(promises.note())
            session.add(Customer(id=1, name="there already"))

    with pytest.raises(IntegrityError):
        work()
    session.commit()
    assert promises.kept == []


@pytest.mark.read_committed
def test_what_is_promised_after_a_failed_flush_is_dropped_too(
    session: Session, promises: Promises
) -> None:
    session.begin()
    session.add(Customer(id=1, name="there already"))
    with pytest.raises(IntegrityError):
        session.flush()
    session.on_commit(promises.note())
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []


@pytest.mark.read_committed
@pytest.mark.databases("postgresql", "sqlite")
def test_a_commit_that_the_database_refuses_is_none(
    engine: sa.Engine, session: Session, promises: Promises
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS lk_deferred")
        connection.exec_driver_sql(
            "CREATE TABLE lk_deferred (id INTEGER REFERENCES lk_customer (id) "
            "DEFERRABLE INITIALLY DEFERRED)"
        )
    if engine.dialect.name == "sqlite":
        session.connection().exec_driver_sql("PRAGMA foreign_keys = ON")
    session.execute(sa.text("INSERT INTO lk_deferred VALUES (99)"))
    session.on_commit(promises.note())
    with pytest.raises(DBAPIError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lk_deferred")


@pytest.mark.read_committed
@pytest.mark.not_databases("sqlite")
def test_a_transaction_that_has_failed_to_lock_is_none(
    session: Session, other: Session, promises: Promises
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    session.on_commit(promises.note())
    with pytest.raises(LockNotAvailable):
        session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    session.commit()
    assert promises.kept == []


@pytest.mark.read_committed
def test_a_refusal_that_sends_nothing_drops_nothing(session: Session, promises: Promises) -> None:
    session.begin()
    session.on_commit(promises.note())
    session.get_one(Order, 1).total = 31
    with pytest.raises(UnsavedChanges):
        session.get_entity(Order, 1, ForUpdate)
    session.commit()
    assert promises.kept == ["called"]


BROKEN = sa.text("SELECT * FROM there_is_no_such_table")


@pytest.mark.read_committed
@pytest.mark.databases("postgresql")
def test_a_commit_that_postgresql_makes_a_rollback_is_none(
    session: Session, promises: Promises
) -> None:
    session.begin()
    session.add(Customer(id=9, name="new"))
    session.flush()
    session.on_commit(promises.note())
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    with pytest.raises(PendingRollbackError):
        session.commit()  # the server would answer with ROLLBACK, which psycopg does not report
    session.rollback()
    assert session.get(Customer, 9) is None
    session.commit()
    assert promises.kept == []


@pytest.mark.read_committed
@pytest.mark.not_databases("postgresql")
def test_an_error_that_aborts_nothing_drops_nothing(session: Session, promises: Promises) -> None:
    session.begin()
    session.add(Customer(id=9, name="new"))
    session.flush()
    session.on_commit(promises.note())
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    session.commit()
    assert session.get(Customer, 9) is not None
    assert promises.kept == ["called"]


@pytest.mark.read_committed
def test_nor_does_one_in_a_savepoint(session: Session, promises: Promises) -> None:
    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.on_commit(promises.note("kept"))
        with suppress(DBAPIError), session.begin_nested():
            session.on_commit(promises.note("dropped"))
            session.execute(BROKEN)
        assert list(session.held_locks) == [(Order, (1,))]
        session.on_commit(promises.note("too"))
    assert promises.kept == ["kept", "too"]
    assert session.get_one(Order, 1).total == 31


@pytest.mark.read_committed
def test_nor_one_of_the_transaction_before(session: Session, promises: Promises) -> None:
    with pytest.raises(DBAPIError):
        session.execute(BROKEN)
    session.rollback()
    session.get_one_entity(Order, 1, ForUpdate)
    session.on_commit(promises.note())
    session.commit()
    assert promises.kept == ["called"]


# --------------------------------------------------------------------------------------------------
# A lent Connection lost after a COMMIT: the commit stands, and promised functions run.


@pytest.mark.databases("mysql", "mariadb")  # there KILL ends a connection midway
def test_it_is_given_up_and_the_promise_is_kept(
    documents: Database, make_engine: Callable[..., sa.Engine]
) -> None:
    called: list[str] = []
    with make_engine().connect() as lent, LockingSession(bind=lent) as session:

        def lose(_: object) -> None:
            driver = lent.connection.driver_connection
            with documents.observer().connect() as observer:
                observer.exec_driver_sql(f"KILL {driver.thread_id()}")  # type: ignore[union-attr]

        session.get_entity(Order, 1, ForUpdate)
        session.on_commit(lambda: called.append("committed"))
        event.listen(session, "after_commit", lose, once=True)
        session.commit()
        assert called == ["committed"]
        with pytest.raises(DBAPIError):
            session.get_entity(Order, 2, ForUpdate)
        assert lent.invalidated
        session.rollback()
        lent.rollback()
        session.get_entity(Order, 2, ForUpdate)  # on another connection
        session.on_commit(lambda: called.append("rolled back"))
        session.rollback()
    assert called == ["committed"]
