"""Joined inheritance: the key is that of a row of another class, whose lock nobody has asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockOptions
from tests.integration.locking.steps import finds_held
from tests.support.models import Contract, Lease

pytestmark = [pytest.mark.read_committed, pytest.mark.not_databases("sqlite")]

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
OTHER = 7
Session = LockingSession


@pytest.fixture(autouse=True)
def other_class(elsewhere: Callable[..., list[Any]]) -> None:
    """Have a contract that is no lease."""
    elsewhere(
        sa.delete(Contract).where(Contract.id == OTHER),
        sa.insert(Contract).values(id=OTHER, kind="contract", total=0),
    )


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_the_lock_is_given_back(session: Session, other: Session, lock: LockOptions) -> None:
    assert session.get_entity(Lease, OTHER, lock) is None
    assert not session.held_locks
    assert not finds_held(Contract, OTHER)(other)
    assert session.get_entities(Lease, [OTHER], lock) == []
    assert not finds_held(Contract, OTHER)(other)
    assert session.get_document(Lease, OTHER, lock) is None
    assert not finds_held(Contract, OTHER)(other)


def test_in_a_callers_transaction_it_is_listed(session: Session, other: Session) -> None:
    with session.begin():
        assert session.get_entity(Lease, OTHER, ForUpdate) is None
        assert dict(session.held_locks) == {(Contract, (OTHER,)): ForUpdate}
        assert finds_held(Contract, OTHER)(other)
        session.rollback()
    assert not finds_held(Contract, OTHER)(other)


def test_beside_a_lease_it_is_listed(session: Session, other: Session) -> None:
    found = session.get_entities(Lease, [1, OTHER], ForUpdate)
    keys = [(Contract, (one.id,)) for one in found]
    assert set(session.held_locks) == {*keys, (Contract, (OTHER,))}
    assert finds_held(Contract, OTHER)(other)


def test_the_lock_of_the_root_is_refused_nothing(session: Session) -> None:
    with session.locked(Contract, OTHER) as contract:
        assert session.get_entity(Lease, OTHER, ForUpdate) is None
        contract.total = 1
    assert session.get_one(Contract, OTHER).total == 1
