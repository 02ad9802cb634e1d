"""The number of round trips at the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sa_doclock import AsyncLockingSession, LockingSession, LockOptions, skip_redundant_rollback
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.integration.timeouts.wire import Wire
from tests.support.databases import PIPELINED, Database
from tests.support.models import Order

pytestmark = pytest.mark.quick

Session = LockingSession
Connect = Callable[..., Session]
innodb = pytest.mark.databases("mysql", "mariadb")


def update(session: Session) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    order.total += 1
    session.save_changes()


def load(session: Session) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.SharedRead)
    assert len(order.lines) == 2
    session.release_locks()


def leave(session: Session) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    session.close()


ENDS: Mapping[str, Callable[[Session], None]] = {"update": update, "load": load}
each_end = pytest.mark.parametrize("use", ENDS.values(), ids=ENDS)


def trips(wire: Wire, session: Session, use: Callable[[Session], Any]) -> int:
    use(session)
    with wire.counting() as counted:
        use(session)
    return counted[0]


@innodb
@each_end
def test_it_saves_one(wire: Wire, connect: Connect, use: Callable[[Session], None]) -> None:
    as_ever = trips(wire, connect(), use)
    assert as_ever == 4
    assert trips(wire, connect(**skip_redundant_rollback()), use) == 3


@innodb
@each_end
def test_a_default_engine_costs_one_more(
    wire: Wire, connect: Connect, use: Callable[[Session], None]
) -> None:
    assert trips(wire, connect(isolation_level="REPEATABLE READ"), use) == 5
    spared = connect(isolation_level="REPEATABLE READ", **skip_redundant_rollback())
    assert trips(wire, spared, use) == 4


@innodb
def test_a_session_that_is_closed_in_the_midst_costs_what_it_did(
    wire: Wire, connect: Connect
) -> None:
    assert (
        trips(wire, connect(), leave)
        == trips(wire, connect(**skip_redundant_rollback()), leave)
        == 3
    )


@pytest.mark.databases("postgresql")
@pytest.mark.not_databases(PIPELINED)
@each_end
def test_postgresql_has_nothing_to_save(
    wire: Wire, connect: Connect, use: Callable[[Session], None]
) -> None:
    as_ever = trips(wire, connect(), use)
    assert as_ever == 4  # BEGIN, the lock, lines or UPDATE, COMMIT or ROLLBACK
    assert trips(wire, connect(**skip_redundant_rollback()), use) == as_ever


@innodb
@in_a_loop
async def test_it_saves_one_under_asyncio(
    documents: Database, wire: Wire, read_committed: dict[str, Any]
) -> None:
    counted = []
    for options in ({}, skip_redundant_rollback()):
        url = url_for(documents, "aiomysql").set(host="127.0.0.1", port=wire.port)
        async with (
            connected(url, pool_size=1, max_overflow=0, **read_committed, **options) as engine,
            AsyncLockingSession(engine) as session,
        ):
            for _ in range(2):
                with wire.counting() as trips:
                    async with session.locked(Order, 1) as order:
                        order.total += 1
            counted += trips
    assert counted == [4, 3]
