"""Freed sessions, interruptions of the ledger, and the order in which limits are set."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import DocumentGate, LockingSession, LockLost, LockOptions
from sa_doclock.core.session.hooks import context_of
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import LockWaits, ServerHoldLimit
from tests.support.models import Lease, Order

pytestmark = pytest.mark.each_value

# --------------------------------------------------------------------------------------------------
# An abandoned session is freed at once, like SQLAlchemy's own.

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def _collector_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def change(session: Session) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate, lock_timeout=5)
    order.total += sum(line.value for line in order.lines)
    session.save_changes()


def read(session: Session) -> None:
    assert session.get_document(Order, 1, LockOptions.SharedRead)
    session.release_locks()
    assert len(session.get_documents(Order, [1, 2], LockOptions.SnapshotRead)) == 2


def lock_within_savepoint(session: Session) -> None:
    session.begin()
    with session.begin_nested():
        session.get_one_entity(Lease, 1, ForUpdate)
    session.commit()


def take_a_key(session: Session) -> None:
    session.lock_key("import", lock_timeout=5)
    session.on_commit(session_is_done)
    session.commit()


def session_is_done() -> None: ...


def be_refused(session: Session) -> None:
    with pytest.raises(LookupError), session.locked(Order, 1):
        raise LookupError


def lock_a_set(session: Session) -> None:
    session.scalars(session.entity_set(Order, ForUpdate).order_by(Order.id)).all()
    session.execute(sa.update(Order).values(total=Order.total))
    session.rollback()


STEPS: Mapping[str, Callable[[Session], None]] = {
    "nothing": lambda _: None,
    "change": change,
    "read": read,
    "savepoint": lock_within_savepoint,
    "key": take_a_key,
    "an exception in the block": be_refused,
    "a set": lock_a_set,
}

HOW: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "diagnose": {"diagnose": True},
    "batch": {"priority": "batch"},
    "gate": {"gate": DocumentGate()},
    "guard_tracing": {"guard_tracing": True},
}


@pytest.mark.usefixtures("_collector_off")
@pytest.mark.read_committed
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", STEPS)
def test_after_it_was_closed(engine: sa.Engine, name: str, how: str) -> None:
    session = Session(engine, **HOW[how])
    STEPS[name](session)
    session.close()
    gone = weakref.ref(session)
    del session
    assert gone() is None


# --------------------------------------------------------------------------------------------------
# An interruption between two lines of the ledger: a place is noted, but no lock is held there.


@pytest.mark.databases("postgresql")
def test_a_lock_that_is_lost_is_not_held_by_its_place(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate)
        state = context_of(session)
        places = dict(state.ledger.places)
        state.transaction.note_ended(session.connection(), "lost")
        state.ledger.places.update(places)  # clear() was interrupted
        with pytest.raises(LockLost):
            state.transaction.refuse_write()
        session.rollback()


@pytest.mark.databases("postgresql")
def test_a_lost_connection_with_a_place_alone(engine: sa.Engine) -> None:
    with LockingSession(engine) as session:
        driver: Any = session.connection().connection.driver_connection
        context_of(session).ledger.places[Order, (1,)] = 1.0  # record() was interrupted
        driver.close()
        with pytest.raises(sa.exc.OperationalError):
            session.scalar(sa.text("SELECT 1"))
        session.rollback()


# --------------------------------------------------------------------------------------------------
# The order in which a session with a hold_limit asks the dialect for its limits.


class Limits(LockWaits, ServerHoldLimit):
    """Records the limits of a server."""

    def __init__(self) -> None:
        self.set: list[tuple[str, object]] = []

    def limited(
        self,
        connection: sa.Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        self.set.append(("wait", (seconds, few_rows)))
        return nullcontext()

    def limit(self, connection: sa.Connection, seconds: float) -> None:
        self.set.append(("hold", seconds))


@pytest.mark.databases("sqlite")
def test_the_clock_the_hold_and_the_wait_are_limited_once(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, strategy = Limits(), strategy_for(engine)
    monkeypatch.setattr(strategy, "hold_limit", limits)
    monkeypatch.setattr(strategy, "waits", limits)
    with LockingSession(engine, hold_limit=600) as session:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=3)
        assert limits.set == [("hold", 600), ("wait", (3, True))]
        session.get_one_entity(Order, 2, LockOptions.ForUpdate)
        assert limits.set[2:] == [("wait", (None, True))]  # the transaction has the others
