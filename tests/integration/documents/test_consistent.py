"""Header and parts belong together, whoever writes in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockOptions
from tests.integration.documents.models import Line, Order, Tax
from tests.integration.documents.whole import whole
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Actors = Actor[LockingSession]
FIRST = (30, [(10, [4, 6]), (20, [20])])


def lock_order(session: LockingSession) -> None:
    session.get_one_entity(Order, 1, ForUpdate)


def rewrite_details(session: LockingSession) -> None:
    """Change parts of order 1 at both levels, and nothing of the header."""
    order = session.get_one_entity(Order, 1, ForUpdate)
    first, second = order.lines
    first.value, second.value = 15, 15
    second.taxes[0].value = 15
    first.taxes.append(Tax(id=9, value=5))
    session.save_changes()


def add_ten(session: LockingSession) -> None:
    order = session.get_one_entity(Order, 1, ForUpdate)
    order.total += 10
    order.lines.append(Line(id=9, value=10, taxes=[Tax(id=9, value=10)]))
    session.save_changes()


AFTER: dict[Callable[[LockingSession], None], Any] = {
    rewrite_details: (30, [(15, [5, 4, 6]), (15, [15])]),
    add_ten: (40, [(10, [4, 6]), (20, [20]), (10, [10])]),
}


def knows(session: LockingSession) -> list[Any]:
    order = session.get_one(Order, 1)
    assert whole(order) == FIRST
    session.commit()
    return [order, *order.lines, *(tax for line in order.lines for tax in line.taxes)]


READS: dict[str, Callable[[LockingSession], Any]] = {
    "get_document": lambda s: whole(s.get_document(Order, 1, ForUpdate)),
    "get_documents": lambda s: whole(s.get_documents(Order, [1, 2], ForUpdate)[0]),
    "get_entity": lambda s: whole(s.get_entity(Order, 1, ForUpdate)),
    "get_entities": lambda s: whole(s.get_entities(Order, [1, 2], ForUpdate)[0]),
    "a set": lambda s: whole(s.scalars(s.entity_set(Order, ForUpdate).where(Order.id == 1)).one()),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", AFTER)
@pytest.mark.parametrize("acquainted", [False, True])
def test_after_a_wait_the_parts_are_those_of_now(
    alice: Actors,
    bob: Actors,
    read: str,
    write: Callable[[LockingSession], None],
    *,
    acquainted: bool,
) -> None:
    known = bob.does(knows) if acquainted else []
    alice.does(lock_order)
    queued = bob.starts(READS[read])
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(write)
    assert queued.result() == AFTER[write]
    assert len(known) == (6 if acquainted else 0)


@pytest.mark.not_databases("sqlite", "mssql")  # where SharedRead is a snapshot
@pytest.mark.parametrize("write", AFTER)
def test_a_shared_read_waits_too(
    alice: Actors, bob: Actors, write: Callable[[LockingSession], None]
) -> None:
    known = bob.does(knows)
    alice.does(lock_order)
    queued = bob.starts(lambda s: whole(s.get_document(Order, 1, SharedRead)))
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(write)
    assert queued.result() == AFTER[write]
    assert known


@pytest.mark.not_databases("sqlite-journal")  # a reader keeps the writer out there
@pytest.mark.parametrize("write", AFTER)
def test_a_snapshot_shows_parts_as_old_as_the_header(
    alice: Actors, bob: Actors, write: Callable[[LockingSession], None]
) -> None:
    known = bob.does(knows)
    header = bob.does(lambda s: s.get_entity(Order, 1, LockOptions.SnapshotRead))
    alice.does(write)
    assert bob.does(lambda s: whole(s.get_document(Order, 1, LockOptions.SnapshotRead))) == FIRST
    bob.does(lambda s: s.rollback())
    assert bob.does(lambda s: whole(s.get_document(Order, 1, SharedRead))) == AFTER[write]
    assert known
    assert header


@pytest.mark.databases("postgresql")
def test_the_trap_one_statement_for_both_shows_old_parts(
    engine: sa.Engine, alice: Actors, bob: Actors
) -> None:
    """The library avoids this: a locking SELECT that joins shows lines from before its wait."""

    def joins(_: LockingSession) -> list[int]:
        with Session(engine) as plain:
            statement = sa.select(Order, Line).join(Order.lines).where(Order.id == 1)
            rows = plain.execute(statement.order_by(Line.id).with_for_update(of=Order)).all()
            return [line.value for _, line in rows]

    alice.does(lock_order)
    queued = bob.starts(joins)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(rewrite_details)
    assert queued.result() == [10, 20]


def test_nobody_changes_parts_while_the_document_is_held(alice: Actors, bob: Actors) -> None:
    held = alice.does(lambda s: s.get_document(Order, 1, ForUpdate))
    queued = bob.starts(rewrite_details)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    again = alice.does(lambda s: whole(s.get_document(Order, 1, ForUpdate)))
    assert again == FIRST
    alice.does(lambda s: s.commit())
    queued.result()
    assert held
