"""The holders of a row and its waiters on SQL Server: by table, and never for certain.

The twins for other servers are in the files beside this one.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, lock_waits
from tests.integration.locking.steps import locks, roll_back
from tests.integration.monitoring.steps import among, blockers, ids
from tests.support.actors import Actor
from tests.support.models import Lease, Order, Ticket, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.databases("mssql")
Session = Actor[LockingSession]


@pytest.mark.parametrize("entity", [Order, Lease, Ticket, Voucher])
def test_the_holder_is_reported(alice: Session, asker: LockingSession, entity: type[Any]) -> None:
    ident = (2024, 1) if entity is Voucher else 1
    alice.does(locks(entity, ident))
    found = blockers(asker, entity, ident)
    assert set(found) == ids(alice)
    (holder,) = found.values()
    assert not holder.certain  # it may hold another row of the table
    assert holder.user == asker.scalar(sa.text("SELECT SUSER_SNAME()"))
    assert holder.state == "idle in transaction"
    assert holder.transaction_seconds is not None
    assert holder.transaction_seconds >= 0


def test_nobody_waits(alice: Session, bob: Session, engine: sa.Engine) -> None:
    alice.does(locks(Order, 1))
    bob.does(locks(Order, 2))
    assert among(lock_waits(engine), alice, bob) == []


def test_a_wait_is_reported(alice: Session, bob: Session, engine: sa.Engine) -> None:
    alice.does(locks(Order, 1))
    queued = bob.starts(locks(Order, 1))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    (wait,) = among(lock_waits(engine), bob)
    assert {wait.waiter.connection_id} == ids(bob)
    assert {wait.blocker.connection_id} == ids(alice)
    assert wait.root_blocker == wait.blocker
    assert wait.table == "dbo.lk_order"
    assert wait.key  # a hash: what would tell the key, %%lockres%%, is not documented
    assert (wait.waiter.state, wait.blocker.state) == ("active", "idle in transaction")
    assert "UPDLOCK" in str(wait.waiter.statement)
    alice.does(roll_back)
    queued.result()
