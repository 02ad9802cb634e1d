"""A question that cannot be asked in place goes over a connection beside the pool, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from sa_doclock.dialects import strategies
from tests.integration.questions.conftest import SAME, Run
from tests.support.models import Customer, Order

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.not_databases(*SAME)]

ForUpdate = LockOptions.ForUpdate
FULL = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 60}


def connections_of(engine: sa.Engine) -> list[str]:
    """Write down each connection that is made and closed, of the pool and beside it."""
    seen: list[str] = []
    event.listen(engine, "connect", lambda *_: seen.append("made"))
    event.listen(engine, "close", lambda *_: seen.append("closed"))
    return seen


def test_the_pool_may_be_exhausted(run: Run) -> None:
    def play(engine: sa.Engine) -> list[str]:
        with engine.connect() as lent:
            lent.execute(sa.select(Customer.id)).all()
            seen = connections_of(engine)
            with LockingSession(lent) as session:
                session.get_one_entity(Order, 1, ForUpdate)
        return [*seen]

    assert run(play, **FULL) == ["made", "closed"]


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


def test_nor_does_the_first_use_by_a_session_of_the_engine(run: Run, driver: str) -> None:
    def play(engine: sa.Engine) -> list[str]:
        seen = connections_of(engine)
        with LockingSession(engine) as session:
            session.get_one(Customer, 1)
            session.get_one_entity(Order, 1, ForUpdate)
        return [*seen]

    beside = ["made", "closed"] if driver == "pg8000" else []  # which does not tell its status
    assert run(play, **FULL) == ["made", *beside]


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


def test_a_lock_that_finds_one_later_is_followed_as_any_other(run: Run) -> None:
    """The session has begun when no server could be asked."""

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
