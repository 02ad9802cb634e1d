"""The query for holders waits for no lock, leaves nothing behind, and never hides the error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

import sa_doclock.features.diagnosis
from sa_doclock import LockConnection, LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import side_connection
from sa_doclock.dialects.postgresql import monitoring as postgresql_holders
from sa_doclock.features import diagnosis
from tests.integration.locking.connections import patience_of
from tests.integration.locking.steps import locks
from tests.integration.monitoring.steps import (
    KNOWS_HOLDERS,
    ON_SERVERS,
    ids,
    lock_table,
    refused,
    side_connections,
    unlock_table,
    up_to_date,
    wait_until_reported,
)
from tests.support.actors import PATIENCE, Actor
from tests.support.databases import Database
from tests.support.models import Order

FOR_UPDATE = LockOptions.ForUpdate


Session = Actor[LockingSession]
Make = Callable[..., sa.Engine]
ONE_ONLY = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 2}


@contextmanager
def connections_of(engine: sa.Engine) -> Iterator[list[str]]:
    """Record the connections made and closed in the block."""
    seen: list[str] = []

    def made(*_: object) -> None:
        seen.append("made")

    def closed(*_: object) -> None:
        seen.append("closed")

    event.listen(engine, "connect", made)
    event.listen(engine, "close", closed)
    yield seen
    event.remove(engine, "connect", made)
    event.remove(engine, "close", closed)


@pytest.mark.parametrize("diagnose", [False, True])
def test_a_second_connection_is_made_only_where_it_was_asked_for(
    database: Database, alice: Session, make_engine: Make, diagnose: bool
) -> None:
    alice.does(locks(Order, 1))
    wait_until_reported(database, alice)
    engine = make_engine()
    with LockingSession(engine, diagnose=diagnose) as session:
        session.connection()
        session.rollback()
        with connections_of(engine) as seen:
            error = refused(session, Order, 1)
        # No server knows the holder of an SQLite file.
        asked = diagnose and database.name != "sqlite"
        assert seen == (["made", "closed"] if asked else [])
    assert bool(error.blockers) is asked
    assert ("held by connection" in str(error)) is asked


@pytest.mark.databases("postgresql")
def test_the_error_stays_where_the_answer_cannot_be_put_in_words(
    alice: Session, asker: LockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.does(locks(Order, 1))
    odd: Any = b"no text"
    monkeypatch.setattr(
        "sa_doclock.wait_info.LockConnection",
        lambda pid, *_, **__: LockConnection(pid, statement=odd),
    )
    assert refused(asker, Order, 1).blockers == ()


@ON_SERVERS
@pytest.mark.read_committed
@pytest.mark.parametrize("begins", [False, True])
def test_it_needs_no_place_in_the_pool(
    database: Database,
    alice: Session,
    make_engine: Make,
    read_committed: dict[str, Any],
    begins: bool,
) -> None:
    alice.does(locks(Order, 1))
    mine = ids(alice)
    engine = make_engine(**ONE_ONLY, **read_committed)
    with LockingSession(engine, diagnose=True) as session:

        def ask() -> set[int]:
            if begins:
                session.begin()
                session.get_one(Order, 2)
            error = refused(session, Order, 1)
            assert session.in_transaction() is begins
            session.rollback()
            return {one.connection_id for one in error.blockers}

        assert up_to_date(database, ask, lambda found: found == mine) == mine
    with engine.connect() as connection:
        assert patience_of(connection) == patience_of(alice.does(lambda one: one.connection()))


@ON_SERVERS
def test_a_session_on_a_connection_asks_over_another(
    alice: Session, make_engine: Make, database: Database
) -> None:
    alice.does(locks(Order, 1))
    mine = ids(alice)
    with (
        make_engine(**ONE_ONLY).connect() as connection,
        LockingSession(connection, diagnose=True) as session,
    ):

        def ask() -> set[int]:
            return {one.connection_id for one in refused(session, Order, 1).blockers}

        assert up_to_date(database, ask, lambda found: found == mine) == mine


@pytest.mark.databases("postgresql")
def test_a_row_that_cannot_be_read_is_not_waited_for(
    alice: Session, asker: LockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.does(lock_table)
    # As if the table had been locked after the check.
    monkeypatch.setattr(postgresql_holders, "_TABLE_LOCKS", sa.text("SELECT :oid WHERE false"))
    error = refused(asker, Order, 1, lock=LockOptions.ForUpdate, lock_timeout=0.01)
    assert error.blockers == ()
    alice.does(unlock_table)


@ON_SERVERS
def test_the_error_stays_where_asking_fails(
    alice: Session,
    asker: LockingSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> None:
        raise ConnectionRefusedError("the server is full")

    alice.does(locks(Order, 1))
    monkeypatch.setattr(sa_doclock.features.diagnosis, "side_connection", fails)
    with caplog.at_level(logging.DEBUG, logger="sa_doclock"):
        error = refused(asker, Order, 1)
    assert error.blockers == ()
    assert str(error.args[0]).endswith("try again later, or wait for it")
    assert error.orig is error.__cause__
    assert isinstance(error.orig, asker.get_bind().dialect.loaded_dbapi.Error)
    assert not asker.in_transaction()
    (line,) = [line for line in caplog.records if "diagnose" in line.getMessage()]
    assert (line.name, line.levelname) == ("sa_doclock", "DEBUG")
    assert "the server is full" in line.getMessage()


@ON_SERVERS
def test_an_account_that_may_not_know_gets_the_error_and_less(
    database: Database, alice: Session, poor: sa.URL
) -> None:
    alice.does(locks(Order, 1))
    engine = sa.create_engine(poor)
    with LockingSession(engine, diagnose=True) as session:
        error = refused(session, Order, 1)
    engine.dispose()
    if database.name == "postgresql":
        (holder,) = error.blockers
        assert {holder.connection_id} == ids(alice)
        assert holder.user == sa.make_url(database.url).username
        assert (holder.state, holder.statement, holder.transaction_seconds) == (None, None, None)
        assert str(error.args[0]).endswith(f"{holder.connection_id} (user {holder.user})")
    else:
        assert error.blockers == ()
        assert "connection" not in str(error.args[0])


# --------------------------------------------------------------------------------------------------
# The session asks the server that refused, whichever one it would have chosen by itself.

NoWait = LockOptions.ForUpdate | LockOptions.NoWait


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_of_a_set_that_is_bound_elsewhere(
    database: Database,
    engine: sa.Engine,
    make_engine: Callable[..., sa.Engine],
    other: LockingSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[sa.Engine] = []

    @contextmanager
    def noted(engine: sa.Engine, options: Mapping[str, Any]) -> Iterator[sa.Connection]:
        asked.append(engine)
        with side_connection(engine, options) as connection:
            yield connection

    monkeypatch.setattr(sa_doclock.features.diagnosis, "side_connection", noted)
    elsewhere = make_engine()
    other.get_entity(Order, 1, LockOptions.ForUpdate)
    with LockingSession(engine, diagnose=True) as session:
        orders = session.entity_set(Order, NoWait)

        def blockers() -> Sequence[LockConnection]:
            asked.clear()
            with pytest.raises(LockNotAvailable) as caught:
                session.scalars(orders, bind_arguments={"bind": elsewhere})
            assert asked == [elsewhere]
            return caught.value.blockers

        assert up_to_date(database, blockers, bool)
        with pytest.raises(LockNotAvailable):
            session.scalars(orders)
        assert asked == [elsewhere, engine]


# --------------------------------------------------------------------------------------------------
# Many waiters give up at once: one connection asks for all of them and shares its answer.

MANY = 40
ALL_OF_THEM = {"pool_size": MANY, "max_overflow": 0}


@pytest.fixture
def shared_for_long(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # it comes first
    """Share an answer until the end of the test, however slow the machine."""
    monkeypatch.setattr(diagnosis, "SHARED_FOR", 2 * PATIENCE)
    monkeypatch.setattr(diagnosis, "PATIENCE", PATIENCE)


@ON_SERVERS
@pytest.mark.usefixtures("shared_for_long")
@pytest.mark.parametrize("held", [1, 2])
def test_forty_threads_open_one_connection(
    database: Database, alice: Session, make_engine: Callable[..., sa.Engine], held: int
) -> None:
    for ident in range(1, 1 + held):
        alice.does(locks(Order, ident))
    wait_until_reported(database, alice)
    engine = make_engine(**ALL_OF_THEM)
    sessions = [LockingSession(engine, diagnose=True) for _ in range(MANY)]
    pooled = [session.connection() for session in sessions]  # open, so that the pool makes no more
    for session in sessions:
        session.rollback()
    del pooled
    together = Barrier(MANY)

    def give_up(number: int) -> LockNotAvailable:
        together.wait(PATIENCE)
        ident = 1 + number % held
        return refused(sessions[number], Order, ident, lock=FOR_UPDATE, lock_timeout=0.1)

    with side_connections(engine, held) as seen, ThreadPoolExecutor(MANY) as threads:
        errors = list(threads.map(give_up, range(MANY)))
    for session in sessions:
        session.close()
    assert seen == ["made", "closed"]
    if KNOWS_HOLDERS[database.name]:
        mine = ids(alice)
        assert all({one.connection_id for one in error.blockers} == mine for error in errors)
    else:
        assert all(error.blockers for error in errors)
