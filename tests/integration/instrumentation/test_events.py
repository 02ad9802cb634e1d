"""The events of locks: what is reported, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.instrumentation.hearing import hearing
from tests.integration.locking.steps import add_ten
from tests.support.models import Customer, Order, Voucher

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead, NoWait = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.NoWait
Session = LockingSession
ONE, TWO = (Order, (1,)), (Order, (2,))


def test_a_lock_and_its_end(session: Session) -> None:
    with hearing(session) as heard:
        order = session.get_one_entity(Order, 1, ForUpdate)
        assert heard.names == (1, 0, 0)
        assert (
            session.get_one_entity(Order, 1, ForUpdate) is order
        )  # held already: not reported again
        assert session.get_entity(Order, 2) is not None  # no lock
        assert heard.names == (1, 0, 0)
        session.commit()
    assert heard.acquired == [(ONE, ForUpdate)]
    assert heard.released == [([(ONE, ForUpdate)], "committed")]
    assert heard.sessions == [session, session]
    assert heard.waits[0] is not None
    assert heard.waits[0] > 0
    assert heard.held[0] > 0


def test_a_lock_with_a_modifier_is_held_like_any_other(session: Session) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Voucher, (2024, 1), ForUpdate | NoWait)
        session.rollback()
    document = (Voucher, (2024, 1))
    assert heard.acquired == [(document, ForUpdate | NoWait)]
    assert heard.released == [([(document, ForUpdate)], "rolled back")]


def test_many_are_reported_one_by_one_and_let_go_together(session: Session) -> None:
    with hearing(session) as heard:
        session.get_entities(Order, [2, 1, 99], ForUpdate)
        session.rollback()
        assert session.scalars(session.entity_set(Order, ForUpdate)).all()
        session.close()
    assert sorted(heard.acquired, key=str) == [(ONE, ForUpdate)] * 2 + [(TWO, ForUpdate)] * 2
    for released, outcome in heard.released:
        assert sorted(released, key=str) == [(ONE, ForUpdate), (TWO, ForUpdate)]
        assert outcome == "rolled back"
    assert len(heard.released) == 2
    assert len(heard.held) == 4
    assert min(heard.held) > 0


def test_what_is_not_there_is_not_reported(session: Session) -> None:
    with hearing(session) as heard:
        assert session.get_entity(Order, 99, ForUpdate) is None
        session.commit()
        session.get_entity(Order, 1)
        session.commit()
        session.add(Customer(id=9, name="new"))
        session.commit()
    assert heard.names == (0, 0, 0)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (Session.commit, "committed"),
        (Session.save_changes, "committed"),
        (Session.rollback, "rolled back"),
        (Session.release_locks, "rolled back"),
        (Session.close, "rolled back"),
        (Session.reset, "rolled back"),
    ],
)
def test_how_a_transaction_can_end(
    session: Session, end: Callable[[Session], None], outcome: str
) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        end(session)
        end(session)
    assert heard.released == [([(ONE, ForUpdate)], outcome)]


def test_a_block(session: Session) -> None:
    with hearing(session) as heard:
        with session.locked(Order, 1):
            assert heard.released == []
        with pytest.raises(ZeroDivisionError), session.locked(Order, 2):
            raise ZeroDivisionError
    assert heard.released == [
        ([(ONE, ForUpdate)], "committed"),
        ([(TWO, ForUpdate)], "rolled back"),
    ]


def test_a_savepoint_gives_up_what_was_locked_in_it(session: Session) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        savepoint = session.begin_nested()
        session.get_one_entity(Order, 2, ForUpdate)
        savepoint.rollback()
        assert heard.released == [([(TWO, ForUpdate)], "rolled back")]
        with session.begin_nested():
            session.get_one_entity(Voucher, (2024, 1), ForUpdate)
        assert len(heard.released) == 1
        session.commit()
    rest = [(ONE, ForUpdate), ((Voucher, (2024, 1)), ForUpdate)]
    assert heard.released[1:] == [(rest, "committed")]


def test_a_failure_is_reported_before_it_comes_out(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with hearing(session) as heard, pytest.raises(LockNotAvailable) as caught:
        session.get_entity(Order, 1, ForUpdate, lock_timeout=0.05)
    assert heard.failed == [caught.value]
    assert heard.waits == [caught.value.waited]
    assert (heard.failed[0].entity, heard.failed[0].ident) == (Order, 1)
    assert heard.failed[0].lock is ForUpdate
    assert heard.names == (0, 1, 0)


@pytest.mark.not_databases("sqlite")
def test_a_failure_in_a_set_is_reported(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 2, ForUpdate)
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        with pytest.raises(LockNotAvailable), session.begin_nested():
            session.scalars(session.entity_set(Order, ForUpdate | NoWait)).all()
        session.commit()
    assert [(error.entity, error.ident, error.lock) for error in heard.failed] == [
        (Order, None, ForUpdate | NoWait)
    ]
    assert heard.released == [([(ONE, ForUpdate)], "committed")]


def test_a_failed_commit_is_a_rollback(session: Session) -> None:
    with hearing(session) as heard:
        session.get_one_entity(Order, 1, ForUpdate)
        session.add(Customer(id=1, name="there already"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
    assert [outcome for _, outcome in heard.released] in (["rolled back"], ["lost"])


def test_a_listener_may_ask_what_was_locked(session: Session) -> None:
    held: list[Any] = []

    def note(reported: Session, document: Any, *_: object) -> None:
        assert reported is session
        held.append((document, dict(session.held_locks)))

    sa.event.listen(session, "lock_acquired", note)
    add_ten(session)
    assert held == [(ONE, {ONE: ForUpdate})]


def test_a_listener_that_fails_is_a_lock_that_has_failed(session: Session) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("of a listener")

    sa.event.listen(session, "lock_acquired", refuse)
    with pytest.raises(KeyError, match="of a listener"):
        session.get_entity(Order, 1, ForUpdate)
    assert not session.in_transaction()
    assert session.held_locks == {}
