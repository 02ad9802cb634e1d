"""A holder of a lock that wants a connection in another session gets an error at once."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from sa_doclock import DocumentGate, LockingSession, LockMisuse, LockOptions
from tests.integration.gate.queueing import in_use
from tests.integration.locking.steps import locks, save
from tests.support.models import Customer, Order

pytestmark = pytest.mark.quick

Session = LockingSession
ForUpdate = LockOptions.ForUpdate


def flushes(session: Session) -> None:
    session.add(Customer(id=9, name="Zoe"))
    session.flush()


USES: Mapping[str, Callable[[Session], Any]] = {
    "locks another": locks(Order, 2),
    "locks the same": locks(Order, 1),
    "takes a key": lambda session: session.lock_key("a"),
    "reads": lambda session: session.get(Customer, 1),
    "reads a snapshot": locks(Order, 1, LockOptions.SnapshotRead),
    "executes": lambda session: session.execute(sa.select(Customer.id)),
    "flushes": flushes,
    "connects": lambda session: session.connection(),
    "asks for the engine": lambda session: session.get_bind(),  # as docs/gate.md says
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@each_use
def test_it_is_reported(
    engine: sa.Engine, session: Session, other: Session, use: Callable[[Session], Any]
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockMisuse, match="holds Order 1 in another session"):
        use(other)
    assert in_use(engine) == 1
    session.rollback()
    other.rollback()
    assert use(other) is not False  # when the first has ended
    del kept


def test_the_document_that_it_wanted_is_named(session: Session, other: Session) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with pytest.raises(LockMisuse, match=r"^Order 2 FOR UPDATE on ") as caught:
        other.get_entity(Order, 2, ForUpdate)
    assert (caught.value.entity, caught.value.ident) == (Order, 2)
    assert not caught.value.retryable
    del kept


@pytest.mark.parametrize(
    "hold",
    [
        lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
        lambda session: session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait),
        lambda session: session.lock_key("a"),
        lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    ],
    ids=["a set", "without waiting", "a key", "with_for_update"],
)
def test_whatever_lock_it_is(
    session: Session, other: Session, hold: Callable[[Session], Any]
) -> None:
    kept = hold(session)
    with pytest.raises(LockMisuse, match="in another session"):
        other.get(Customer, 1)
    del kept


def test_no_lock_is_no_reason(session: Session, other: Session) -> None:
    session.get(Customer, 1)
    assert other.get(Customer, 1) is not None
    session.rollback()
    assert session.get_entity(Order, 99, ForUpdate) is None
    session.rollback()
    kept = session.get_entity(Order, 1, LockOptions.SnapshotRead)
    assert other.get(Customer, 1) is not None
    del kept


@pytest.mark.not_databases("sqlite")
def test_one_that_is_connected_goes_on(session: Session, other: Session) -> None:
    other.get(Customer, 1)
    kept = session.get_entity(Order, 1, ForUpdate)
    assert other.get(Order, 2) is not None
    del kept


def test_another_engine_is_no_reason(
    make_engine: Callable[..., sa.Engine], gate: DocumentGate, session: Session
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with LockingSession(make_engine(), gate=gate) as elsewhere:
        assert elsewhere.get(Customer, 1) is not None
    del kept


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"poolclass": NullPool}, False),
        ({"max_overflow": -1}, True),  # no public attribute says that it has no limit
        ({"pool_size": 0}, True),
        ({"poolclass": SingletonThreadPool}, False),
        ({"poolclass": StaticPool}, False),
        ({"pool_size": 1, "max_overflow": 1}, True),
    ],
    ids=["none", "any overflow", "any size", "of threads", "static", "of two"],
)
def test_nor_is_a_pool_that_is_never_exhausted(
    make_engine: Callable[..., sa.Engine],
    gate: DocumentGate,
    options: dict[str, Any],
    reported: bool,  # of a table
) -> None:
    engine = make_engine(**options)
    with LockingSession(engine, gate=gate) as session, LockingSession(engine, gate=gate) as other:
        kept = session.get_entity(Order, 1, ForUpdate)
        with pytest.raises(LockMisuse) if reported else nullcontext():
            assert other.get(Customer, 1) is not None
        del kept


def test_nor_is_a_session_without_the_gate(
    session: Session, past_the_gate: Callable[[], Session]
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    with past_the_gate() as beside:
        assert beside.get(Customer, 1) is not None
    del kept


def test_the_gate_may_let_it(engine: sa.Engine) -> None:
    gate = DocumentGate(second_session="allow")
    factory = sessionmaker(engine, class_=LockingSession, gate=gate)
    with factory() as session, factory() as other:
        kept = session.get_entity(Order, 1, ForUpdate)
        assert other.get(Customer, 1) is not None
        del kept


def test_what_runs_after_the_commit_has_a_session_of_its_own(
    session: Session, other: Session
) -> None:
    names = []
    kept = session.get_entity(Order, 1, ForUpdate)
    session.on_commit(lambda: names.append(other.get_one(Customer, 1).name))
    save(session)
    assert names == ["Ann"]
    del kept


def in_thread(action: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  # raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_another_thread_is_another_matter(session: Session, other: Session) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    in_thread(lambda: other.get_one(Customer, 1))
    context = contextvars.copy_context()  # as a framework's thread pool does
    in_thread(lambda: context.run(other.get_one, Order, 2))
    del kept


def test_a_lock_that_was_handed_on_is_not_of_this_thread_any_more(
    session: Session, other: Session
) -> None:
    kept = session.get_entity(Order, 1, ForUpdate)
    in_thread(session.rollback)
    assert other.get(Customer, 1) is not None
    del kept


def test_a_pools_thread_does_not_remember_what_another_request_has_locked(
    session: Session, other: Session
) -> None:
    # Each request runs in a copy of its own context, several after another in one thread.
    kept = contextvars.copy_context().run(session.get_entity, Order, 1, ForUpdate)
    assert contextvars.copy_context().run(other.get, Customer, 1) is not None
    del kept
