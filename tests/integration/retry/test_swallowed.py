"""A function that swallows the deadlock and goes on: nothing of that is ever in the database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import Session as PlainSession
from sqlalchemy.orm import sessionmaker

from sa_doclock import DeadlockDetected, LockingSession
from tests.integration.locking.crosswise import NAMES
from tests.integration.retry.crossing import (
    Crossing,
    Session,
    Take,
    by_flush,
    by_lock,
    by_statement,
)
from tests.support.actors import PATIENCE, Actor
from tests.support.models import Customer

pytestmark = [
    pytest.mark.not_databases("sqlite"),  # the file's lock is one
    pytest.mark.read_committed,
]

Player = Actor[LockingSession]
Factory = sessionmaker[LockingSession]
Run = Callable[..., list[Any]]

INSERT = sa.text("INSERT INTO lk_customer (id, name) VALUES (9, 'escaped')")


def insert_raw(session: Session) -> None:
    session.execute(INSERT)


def insert_by_connection(session: Session) -> None:
    session.connection().execute(INSERT)


def insert_by_flush(session: Session) -> None:
    session.add(Customer(id=9, name="escaped"))
    session.flush()


def commit_after_insert(session: Session) -> None:
    session.add(Customer(id=9, name="escaped"))
    session.commit()


def renamed(ident: int, name: str) -> sa.Update:
    return sa.update(Customer).where(Customer.id == ident).values(name=name)


LATER = (insert_raw, insert_by_connection, insert_by_flush, commit_after_insert)


def swallowing(crossing: Crossing, take: Take, *later: Callable[[Session], None]) -> Take:
    """Take the row; after a deadlock go on with the rest, swallowing what that meets too."""

    def run(session: Session, ident: int) -> None:
        try:
            take(session, ident)
        except DeadlockDetected:
            for act in later:
                with pytest.raises(InvalidRequestError) as caught:  # a PendingRollbackError is one
                    act(session)
                crossing.refused.append(caught.value)

    return run


@pytest.mark.parametrize("take", [by_lock, by_flush, by_statement])
def test_nothing_escapes_and_the_whole_is_run_again(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run, take: Take
) -> None:
    crossing = Crossing(take)
    crossing._take_second = swallowing(crossing, take, *LATER)
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert len(crossing.refused) == len(LATER)
    assert "escaped" not in str(elsewhere(NAMES))


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

    def insert_then_take(session: Session, ident: int) -> None:
        session.execute(insert[ident - 1])
        take(session, ident)

    crossing._take = insert_then_take
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.runs) == 3
    assert elsewhere(NAMES)[2:] == [(11, "1"), (12, "2")]


@pytest.mark.parametrize("take", [by_flush, by_statement])
def test_what_follows_may_come_out_and_the_whole_is_run_again(
    alice: Player, bob: Player, session_factory: Factory, elsewhere: Run, take: Take
) -> None:
    crossing = Crossing(take)

    def take_and_go_on(session: Session, ident: int) -> None:
        try:
            take(session, ident)
        except DeadlockDetected as error:
            crossing.refused.append(error)
            insert_raw(session)

    crossing._take_second = take_and_go_on
    assert crossing.play(alice, bob, session_factory) == [1, 2]
    assert len(crossing.refused) == 1
    assert "escaped" not in str(elsewhere(NAMES))


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


def test_an_error_that_the_function_makes_of_it_comes_out(
    alice: Player, bob: Player, session_factory: Factory
) -> None:
    crossing = Crossing(by_statement)

    def explain(session: Session, ident: int) -> None:
        try:
            by_statement(session, ident)
        except DeadlockDetected as error:
            raise LookupError("busy") from error

    crossing._take_second = explain
    came = crossing.play(alice, bob, session_factory)
    assert sorted(type(one).__name__ for one in came) == ["LookupError", "int"]
    assert len(crossing.runs) == 2


@pytest.mark.databases("mysql", "mariadb")
def test_in_a_plain_session_it_would_have_escaped(
    alice: Player, bob: Player, engine: sa.Engine, elsewhere: Run
) -> None:
    """The twin: the end of the transaction is in the database, its beginning is not."""
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
    names = elsewhere(NAMES)
    assert names[2:] == [(9, "escaped")]
    assert len({name for _, name in names[:2]}) == 1  # the winner's
