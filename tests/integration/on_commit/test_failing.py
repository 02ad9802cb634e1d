"""on_commit: a function that fails undoes nothing, and stops no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held
from tests.integration.on_commit.promises import Promises
from tests.support.models import Order

pytestmark = pytest.mark.read_committed

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


def test_within_begin_the_session_itself_cannot_be_used(session: Session, other: Session) -> None:
    found: list[int] = []

    def look() -> None:
        with pytest.raises(InvalidRequestError, match="inside context manager"):
            session.get(Order, 2)
        found.append(other.get_one(Order, 2).total)  # a session of its own can

    with session.begin():
        session.get_one_entity(Order, 1, ForUpdate)
        session.on_commit(look)
    assert found == [5]
    assert session.get_one(Order, 2).total == 5


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
