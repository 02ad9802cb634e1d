"""Nothing is flushed by itself before a lock or a read by key; afterwards it is as before."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.integration.locking.steps import recorded
from tests.support.models import Customer, Order

pytestmark = pytest.mark.read_committed

Session = LockingSession
ForUpdate = LockOptions.ForUpdate


@pytest.mark.parametrize("lock", [LockOptions.None_, LockOptions.NoLock])
def test_nothing_is_flushed_before_a_read_of_several(
    engine: sa.Engine, session: Session, lock: LockOptions
) -> None:
    session.add(Customer(id=9, name="new"))
    with recorded(engine) as statements:
        found = session.get_entities(Order, [1, 2], lock)
    assert len(found) == 2
    assert not [text for text in statements if "lk_customer" in text]
    assert len(session.new) == 1


@pytest.mark.parametrize("autoflush", [True, False])
def test_a_lock_leaves_autoflush_as_it_was(session: Session, *, autoflush: bool) -> None:
    session.autoflush = autoflush
    order = session.get_document(Order, 1, ForUpdate)
    others = session.get_entities(Order, [2], ForUpdate)
    assert order is not None
    assert len(others) == 1
    assert session.autoflush is autoflush


@pytest.mark.parametrize("autoflush", [True, False])
def test_a_lock_that_fails_leaves_autoflush_as_it_was(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, autoflush: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LockNotSupported("no")

    monkeypatch.setattr("sa_doclock.core.locking.by_key.OneByKey.send", fail)
    session.autoflush = autoflush
    with pytest.raises(LockNotSupported):
        session.get_entity(Order, 1, ForUpdate)
    assert session.autoflush is autoflush
