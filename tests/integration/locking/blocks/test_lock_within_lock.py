"""A lock that a listener asks for while its session is taking another one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockMisuse, LockOptions
from tests.support.models import Customer, Order

pytestmark = pytest.mark.quick

ForUpdate = LockOptions.ForUpdate
Lock = Callable[[LockingSession], Any]


@contextmanager
def when_loaded(lock: Lock) -> Iterator[None]:
    """Call the function for each order that is loaded, out of the SELECT that loads it."""

    def listen(_order: Order, context: Any) -> None:
        lock(context.session)

    event.listen(Order, "load", listen)
    try:
        yield
    finally:
        event.remove(Order, "load", listen)


@contextmanager
def when_executed(lock: Lock) -> Iterator[None]:
    """Call the function at the first statement of a session, before it is sent."""
    called: list[Any] = []

    def listen(state: Any) -> None:
        if not called:
            called.append(state)
            lock(state.session)

    event.listen(LockingSession, "do_orm_execute", listen)
    try:
        yield
    finally:
        event.remove(LockingSession, "do_orm_execute", listen)


WAYS: dict[str, Lock] = {
    "get_entity": lambda session: session.get_entity(Customer, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Customer, [1, 2], ForUpdate),
    "entity_set": lambda session: session.scalars(session.entity_set(Customer, ForUpdate)).all(),
    "lock_key": lambda session: session.lock_key("inner"),
}


@pytest.mark.parametrize("inner", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("when", [when_loaded, when_executed])
def test_it_is_refused_before_anything_is_sent(
    session: LockingSession,
    elsewhere: Callable[..., list[Any]],
    when: Callable[[Lock], Any],
    inner: Lock,
) -> None:
    with (
        when(inner),
        pytest.raises(LockMisuse, match="while the session was still locking Order 1"),
    ):
        session.get_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {}
    assert not session.in_transaction()  # which the outer call had opened
    assert elsewhere(sa.update(Order).values(remark="free"), sa.select(Order.remark).distinct())


@pytest.mark.parametrize("inner", WAYS.values(), ids=WAYS)
def test_a_listener_that_catches_it_spoils_nothing(session: LockingSession, inner: Lock) -> None:
    def try_it(of_session: LockingSession) -> None:
        with pytest.raises(LockMisuse):
            inner(of_session)

    with when_loaded(try_it):
        order = session.get_one_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    inner(session)
    order.total += 1
    session.save_changes()


def test_what_is_held_already_may_be_asked_for(session: LockingSession) -> None:
    customer = session.get_one_entity(Customer, 1, ForUpdate)
    found: list[Any] = []
    with when_loaded(lambda s: found.append(s.get_entity(Customer, 1, ForUpdate))):
        session.get_one_entity(Order, 1, ForUpdate)
    assert found == [customer]


def test_another_session_may_lock_meanwhile(session: LockingSession, other: LockingSession) -> None:
    if session.get_bind().dialect.name == "sqlite":  # where the lock is the file's
        pytest.skip("one write lock for the file")

    def lock_elsewhere(_session: LockingSession) -> None:
        other.get_one_entity(Customer, 1, ForUpdate)

    with when_loaded(lock_elsewhere):
        session.get_one_entity(Order, 1, ForUpdate)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    assert dict(other.held_locks) == {(Customer, (1,)): ForUpdate}
