"""A session that nobody has any more is freed at once, as SQLAlchemy's own is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import DocumentGate, LockingSession, LockOptions
from tests.support.models import Lease, Order

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture(autouse=True)
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
