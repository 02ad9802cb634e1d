"""A part that its relationship tells by a discriminator: others have their rows in its table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.orm import sessionmaker

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.versions.models import Noted, Remark

Action = Callable[[LockingSession], None]


@pytest.fixture
def session(session: LockingSession) -> LockingSession:
    """Return a session with Noted 1, its remark 1, and remark 2 of a customer 1."""
    with session.unguarded():
        session.add(Noted(id=1))
        session.add_all(
            Remark(id=ident, owner_id=1, owner_kind=kind)
            for ident, kind in ((1, "noted"), (2, "customer"))
        )
        session.commit()
    return session


def change(ident: int, **values: object) -> Action:
    def action(session: LockingSession) -> None:
        remark = session.get_one(Remark, ident)
        for name, value in values.items():
            setattr(remark, name, value)

    return action


def add(kind: str) -> Action:
    return lambda session: session.add(Remark(id=9, owner_id=1, owner_kind=kind))


def delete(ident: int) -> Action:
    return lambda session: session.delete(session.get_one(Remark, ident))


OTHERS = [change(2, text="x"), add("customer"), delete(2)]
OWN = [
    change(1, text="x"),
    add("noted"),
    delete(1),
    change(2, owner_kind="noted"),
    change(1, owner_kind="customer"),
]


@pytest.mark.parametrize("action", OTHERS)
def test_a_row_of_another_owner_is_no_part(session: LockingSession, action: Action) -> None:
    action(session)
    session.commit()
    assert session.get_one(Noted, 1).version == 1


@pytest.mark.parametrize("action", OWN)
def test_a_row_that_is_comes_or_was_a_part_is_one(
    session: LockingSession, factory: sessionmaker[LockingSession], action: Action
) -> None:
    action(session)
    with pytest.raises(UnlockedWrite, match="Noted 1"):
        session.flush()
    session.rollback()
    with factory() as holder:
        with holder.locked_document(Noted, 1):
            action(holder)
        assert holder.get_one(Noted, 1).version == 2


def test_what_it_was_is_asked_where_it_is_not_loaded(session: LockingSession) -> None:
    found = session.get_one(Remark, 1)
    session.expire(found)
    found.owner_kind = "customer"
    with pytest.raises(UnlockedWrite, match="Noted 1"):
        session.flush()


def test_what_a_collation_may_take_for_the_same_is_a_part(session: LockingSession) -> None:
    session.add(Remark(id=9, owner_id=1, owner_kind="N\u00f3ted "))
    with pytest.raises(UnlockedWrite, match="Noted 1"):
        session.flush()
