"""A query that cannot run in place uses a connection beside the pool, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from sa_doclock import (
    DocumentGate,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    check_database,
    claim_each,
    explain_lock,
    lock_waits,
)
from sa_doclock.claims.query import ClaimQuery
from sa_doclock.claims.report import ClaimReport
from sa_doclock.claims.sessions import ClaimSessions
from sa_doclock.dialects import strategies
from tests.integration.questions.conftest import SAME, Run, watch
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.each_value, pytest.mark.not_databases(*SAME)]

ForUpdate = LockOptions.ForUpdate
FULL = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 60}


def connections_of(engine: sa.Engine) -> list[str]:
    """Record each connection made and closed, in the pool and beside it."""
    seen: list[str] = []
    event.listen(engine, "connect", lambda *_: seen.append("made"))
    event.listen(engine, "close", lambda *_: seen.append("closed"))
    return seen


@pytest.mark.databases("postgresql")
def test_the_pool_may_be_exhausted(run: Run) -> None:
    def play(engine: sa.Engine) -> list[str]:
        with engine.connect() as lent:
            lent.execute(sa.select(Customer.id)).all()
            seen = connections_of(engine)
            with LockingSession(lent) as session:
                session.get_one_entity(Order, 1, ForUpdate)
        return [*seen]

    assert run(play, **FULL) == ["made", "closed"]


@pytest.mark.databases("postgresql")
def test_one_that_has_asked_needs_no_other(run: Run) -> None:
    def play(engine: sa.Engine) -> list[str]:
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, ForUpdate)
        seen = connections_of(engine)
        with engine.connect() as lent, LockingSession(lent) as session:
            lent.execute(sa.select(Customer.id)).all()
            session.get_one_entity(Order, 1, ForUpdate)
        return [*seen]

    assert run(play, **FULL) == []


@pytest.mark.databases("postgresql")
def test_nor_does_the_first_use_by_a_session_of_the_engine(run: Run, driver: str) -> None:
    def play(engine: sa.Engine) -> list[str]:
        seen = connections_of(engine)
        with LockingSession(engine) as session:
            session.get_one(Customer, 1)
            session.get_one_entity(Order, 1, ForUpdate)
        return [*seen]

    beside = ["made", "closed"] if driver == "pg8000" else []  # it does not report its status
    assert run(play, **FULL) == ["made", *beside]


@pytest.mark.databases("postgresql")
def test_without_another_connection_a_lock_is_refused_and_a_read_is_not(run: Run) -> None:
    refused = ConnectionError("FATAL: too many connections")

    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent:
            lent.execute(sa.select(Customer.id)).all()

            def refuse(*_: Any) -> None:
                raise refused

            event.listen(engine, "do_connect", refuse)
            with LockingSession(lent) as session:
                assert session.get_one(Customer, 1).name == "Ann"
                assert engine.dialect not in strategies
                with pytest.raises(LockNotSupported, match="too many connections") as caught:
                    session.get_entity(Order, 1, ForUpdate)
                assert (caught.value.entity, caught.value.ident) == (Order, 1)
                assert caught.value.__cause__ is refused
            assert lent.in_transaction()
            lent.rollback()
            event.remove(engine, "do_connect", refuse)
            with LockingSession(lent) as session:
                assert session.get_one_entity(Order, 1, ForUpdate).total == 30
                session.save_changes()

    run(play)


@pytest.mark.databases("postgresql")
def test_a_lock_that_finds_one_later_is_followed_as_any_other(run: Run) -> None:
    """The session began when no server could be queried."""

    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent:
            lent.execute(sa.text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))

            def refuse(*_: Any) -> None:
                raise ConnectionError

            event.listen(engine, "do_connect", refuse)
            with LockingSession(lent) as session:
                session.get_one(Customer, 1)
                event.remove(engine, "do_connect", refuse)
                session.get_one_entity(Order, 1, ForUpdate)
                assert session.held_locks == {(Order, (1,)): ForUpdate}
                connection: Any = lent.connection
                connection.rollback()
                assert session.held_locks == {} or engine.dialect.driver == "pg8000"

    run(play)


# --------------------------------------------------------------------------------------------------
# Tools that query the server while the program has a transaction on the same engine.

RENAMED = sa.update(Customer).where(Customer.id == 1).values(name="Zoe")
Tool = Callable[[sa.Engine, sa.Connection], object]


def claims(engine: sa.Engine, _: sa.Connection) -> None:
    for claim in claim_each(partial(LockingSession, engine), sa.select(Order)):
        with claim:
            pass


def claims_on_the_connection(_: sa.Engine, lent: sa.Connection) -> None:
    """Query whether the table is a view, for sessions that join the program's transaction."""
    factory = partial(LockingSession, lent)
    sessions = ClaimSessions(factory, ClaimQuery(sa.select(Order), None), ClaimReport())
    with factory() as session:
        sessions._check(session)


def explains(engine: sa.Engine, _: sa.Connection) -> None:
    explain_lock(engine, Order, ForUpdate, lock_timeout=1)


def explains_a_session(_: sa.Engine, lent: sa.Connection) -> None:
    with Session(lent) as session:
        explain_lock(session, Order, ForUpdate)


def checks(engine: sa.Engine, _: sa.Connection) -> None:
    check_database(engine, Order.registry)


def waits(_: sa.Engine, lent: sa.Connection) -> None:
    lock_waits(lent)


def queues(engine: sa.Engine, _: sa.Connection) -> None:
    with LockingSession(engine, gate=DocumentGate()) as session:
        session.get_one_entity(Order, 1, ForUpdate)


def diagnoses(engine: sa.Engine, _: sa.Connection) -> None:
    with LockingSession(engine) as holder, LockingSession(engine, diagnose=True) as session:
        holder.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate, lock_timeout=0)


TOOLS: tuple[Tool, ...] = (
    *(claims, claims_on_the_connection, explains, explains_a_session),
    *(checks, waits, queues, diagnoses),
)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("tool", TOOLS)
def test_its_transaction_is_as_if_nothing_had_been_sent(
    run: Run, documents: Database, elsewhere: Callable[..., list[Any]], tool: Tool
) -> None:
    def play(engine: sa.Engine) -> None:
        with engine.connect() as lent:
            is_in_transaction = watch(documents, lent)
            with lent.begin() as transaction:
                tool(engine, lent)
                assert transaction.is_active
                assert not is_in_transaction(lent)
                elsewhere(RENAMED)
                assert (
                    lent.execute(sa.select(Customer.name).where(Customer.id == 1)).scalar() == "Zoe"
                )

    options: Mapping[str, Any] = {"isolation_level": "REPEATABLE READ"}
    run(play, **options)
