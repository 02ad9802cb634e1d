"""Whatever statement the server makes the victim of a deadlock: the whole function runs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession
from tests.integration.locking.crosswise import NAMES, TOTALS
from tests.integration.retry.crossing import (
    Crossing,
    Session,
    Take,
    by_flush,
    by_lock,
    by_statement,
    by_text,
)
from tests.support.actors import Actor
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.not_databases("sqlite"),  # the file's lock is one
    pytest.mark.read_committed,
]

Player = Actor[LockingSession]
Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]


@pytest.mark.parametrize("take", [by_lock, by_flush, by_statement, by_text])
def test_the_victim_is_run_again_in_a_new_session(
    alice: Player, bob: Player, session_factory: Factory, naps: list[float], take: Take
) -> None:
    crossing = Crossing(take)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert len({id(session) for _, session in crossing.runs}) == 3
    assert not any(session.in_transaction() for _, session in crossing.runs)
    assert len(naps) == 1


def test_what_is_committed_is_what_one_run_of_each_has_written(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run
) -> None:
    def add_one(session: Session, ident: int) -> None:
        by_lock(session, ident)
        session.get_one(Order, ident).total += 1
        session.save_changes()  # only flushes here

    crossing = Crossing(add_one)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert elsewhere(TOTALS) == [(1, 32), (2, 7)]


def test_a_single_attempt_raises_what_the_server_said(
    alice: Player,
    bob: Player,
    session_factory: Factory,
    elsewhere: Run,
    naps: list[float],
) -> None:
    def add_one(session: Session, ident: int) -> None:
        session.execute(sa.update(Order).where(Order.id == ident).values(total=Order.total + 1))

    came = Crossing(add_one).play(alice, bob, session_factory, attempts=1)
    (failure,) = [one for one in came if isinstance(one, BaseException)]
    assert type(failure) is DeadlockDetected
    assert failure.attempts == 1
    assert str(failure).startswith(f"the transaction on {alice.database.name}: chosen as the vic")
    assert "(given up after 1 attempt)" in str(failure)
    assert failure.orig is not None
    assert naps == []
    assert elsewhere(TOTALS) == [(1, 31), (2, 6)]


def test_a_deadlock_in_a_savepoint_that_is_rolled_back(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run
) -> None:
    """PostgreSQL keeps the rest, which is committed; InnoDB has kept nothing, and it is repeated."""

    def insert_and_take(session: Session, ident: int) -> None:
        session.add(Customer(id=10 + ident, name="rest"))
        session.flush()
        by_statement(session, ident)

    def take_in_savepoint(session: Session, ident: int) -> None:
        try:
            with session.begin_nested():
                by_statement(session, ident)
        except DeadlockDetected as error:
            crossing.refused.append(error)

    crossing = Crossing(insert_and_take, take_in_savepoint)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.refused) == 1
    repeated = alice.database.name != "postgresql"
    assert len(crossing.runs) == (3 if repeated else 2)
    assert len([name for _, name in elsewhere(NAMES) if name == "rest"]) == 2
